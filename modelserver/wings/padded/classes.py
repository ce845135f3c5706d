"""The models that transformers computes: what their config.json names, and the class that vLLM loads instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelserver.engines.model_config import OwnClasses

_ENCODER, _CLASSIFIER, _HEADLESS = "PaddedEncoder", "PaddedForSequenceClassification", "HeadlessBert"
_SERVED_AS: Mapping[str, str] = {
    # vLLM has neither a class nor a backend for the attention of these: they run as they are in transformers.
    **dict.fromkeys(("MPNetModel", "MPNetForMaskedLM", "DistilBertModel", "DistilBertForMaskedLM"), _ENCODER),
    **dict.fromkeys(("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"), _ENCODER),
    # Classifiers that vLLM has no class for.
    **dict.fromkeys(
        (
            f"{name}ForSequenceClassification"
            for name in (
                *("Albert", "Camembert", "Deberta", "DebertaV2", "DistilBert", "Electra", "Gte", "MPNet", "NomicBert"),
            )
        ),
        _CLASSIFIER,
    ),
    # vLLM takes these for models that do not embed.
    **dict.fromkeys(("BertForMaskedLM", "BertForPreTraining"), _HEADLESS),
}
_OTHER_FILES = frozenset({"GteModel", "NomicBertModel"})
"""vLLM's classes of these names read files of the code that was published with the models, not transformers' own."""


def served_as(config: Mapping[str, Any]) -> str | None:
    """The architecture that a config.json is computed as; None: as vLLM does."""
    architecture = next(iter(config.get("architectures") or ()), "")
    if "auto_map" in config:
        return None
    if architecture in _OTHER_FILES and "activation_function" not in config:
        return _ENCODER
    return _SERVED_AS.get(architecture)


PADDED = OwnClasses(
    places={name: f"modelserver.wings.padded.encoders:{name}" for name in (_ENCODER, _CLASSIFIER, _HEADLESS)},
    served_as=served_as,
    eager=frozenset((_ENCODER, _CLASSIFIER)),
)
