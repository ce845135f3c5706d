"""The wishes of a model's config.json: its class, and sizes for CUDA graphs; the scores of its logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from modelserver.engines.engine import Activation, Matrix, Scoring

OWN_CLASSES: Mapping[str, str] = {
    "PaddedEncoder": "modelserver.engines.padded:PaddedEncoder",
    "PaddedForSequenceClassification": "modelserver.engines.padded:PaddedForSequenceClassification",
    "HeadlessBert": "modelserver.engines.padded:HeadlessBert",
}
"""Registered with vLLM, by architecture."""
_SERVED_AS: Mapping[str, str] = {
    # vLLM has neither a class nor a backend for the attention of these: they run as they are in transformers.
    **dict.fromkeys(("MPNetModel", "MPNetForMaskedLM", "DistilBertModel", "DistilBertForMaskedLM"), "PaddedEncoder"),
    **dict.fromkeys(("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"), "PaddedEncoder"),
    # vLLM takes these for models that do not embed.
    **dict.fromkeys(("BertForMaskedLM", "BertForPreTraining"), "HeadlessBert"),
}
_PADDED_CLASSIFIERS = frozenset(
    f"{name}ForSequenceClassification"
    for name in ("Albert", "Camembert", "Deberta", "DebertaV2", "DistilBert", "Electra", "Gte", "MPNet", "NomicBert")
)
"""Classifiers that vLLM has no class for."""
_CODE_SERVED_AS: Mapping[str, str] = {"Qwen3BidirectionalModel": "VoyageQwen3BidirectionalEmbedModel"}
"""vLLM's class, by the class in code that was published with a model: its config.json names another architecture."""
_OTHER_FILES = frozenset({"GteModel", "NomicBertModel"})
"""vLLM's classes of these names read files of the code that was published with the models, not transformers' own."""
_ROBERTA = frozenset({"roberta", "xlm-roberta", "camembert"})
_SMALLEST, _LARGEST = 8, 4096
"""Tokens. Above the largest, a GPU computes longer than its kernels take to launch (estimated: `make bench-gpu`)."""


def runs_eagerly(overrides: Mapping[str, Any]) -> bool:
    """Whether these overrides choose a class that vLLM cannot compile."""
    return overrides.get("architectures") in (["PaddedEncoder"], ["PaddedForSequenceClassification"])


def known_type(config: Mapping[str, Any]) -> str | None:
    """The model type of transformers whose entries a config.json has, if it names a type of published code."""
    if config.get("model_type") != "jina_embeddings_v5":
        return None
    return "qwen3" if config.get("is_decoder", True) else "eurobert"


def refusal(config: Mapping[str, Any]) -> str | None:
    """Why a model cannot be served without the code that was published with it, where vLLM's own error does not say."""
    if "lora_adaptations" not in config:
        return None
    return (
        "it chooses its adapters by code that was published with it: serve jinaai/jina-embeddings-v3-hf instead, the"
        " same model without adapters, as transformers reads it"
    )


def hf_overrides(config: Mapping[str, Any], scoring: Scoring | None = None) -> dict[str, Any]:
    """Entries of a model's config.json to replace for vLLM when the model embeds or scores."""
    architecture = next(iter(config.get("architectures") or ()), "")
    if scoring is not None and scoring.answers:
        return {
            "architectures": [architecture.replace("ForCausalLM", "ForSequenceClassification")],
            "classifier_from_token": list(scoring.answers),
            "method": "from_2_way_softmax",
            "num_labels": 1,
        }
    code = str((config.get("auto_map") or {}).get("AutoModel", "")).rpartition(".")[2]
    replaced: dict[str, Any] = {}
    native = "auto_map" not in config and "activation_function" not in config
    if architecture in _OTHER_FILES and native:
        replaced["architectures"] = ["PaddedEncoder"]
    elif code in _CODE_SERVED_AS:
        replaced["architectures"] = [_CODE_SERVED_AS[code]]
    elif architecture in _PADDED_CLASSIFIERS and "auto_map" not in config:
        replaced["architectures"] = ["PaddedForSequenceClassification"]
    elif architecture in _SERVED_AS and "auto_map" not in config:
        replaced["architectures"] = [_SERVED_AS[architecture]]
    if config.get("model_type") in _ROBERTA and "position_embedding_type" not in config:
        replaced["position_embedding_type"] = "absolute"  # vLLM reads it; transformers 5 no longer writes it
    return replaced


def capture_sizes(step_tokens: int, smallest: int = _SMALLEST, largest: int = _LARGEST) -> tuple[int, ...]:
    """Powers of two and their midpoints, which are also the totals of the profile, up to a step's capacity.

    A smaller step is padded to the next of them. vLLM's default, 51 sizes up to 512, leaves larger steps without.
    """
    most = min(step_tokens, largest)
    sizes = {size for power in range(most.bit_length()) for size in (2**power, 3 * 2**power // 2)}
    return tuple(sorted({size for size in sizes if smallest <= size < most} | {most}))


def activated(logits: Matrix, activation: Activation) -> Matrix:
    """Scores float32 [queries, labels] of logits of the same shape."""
    if activation is Activation.IDENTITY:
        return logits
    if activation is Activation.SIGMOID:
        return np.asarray(np.exp(-np.logaddexp(np.float32(0.0), -logits)), np.float32)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)
