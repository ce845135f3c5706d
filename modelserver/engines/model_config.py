"""The wishes of a model's config.json: its class, and sizes for CUDA graphs; the scores of its logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from modelserver.engines.engine import Activation, Matrix, Scoring

_CODE_SERVED_AS: Mapping[str, str] = {"Qwen3BidirectionalModel": "VoyageQwen3BidirectionalEmbedModel"}
"""vLLM's class, by the class in code that was published with a model: its config.json names another architecture."""
_ROBERTA = frozenset({"roberta", "xlm-roberta", "camembert"})
_SMALLEST, _LARGEST = 8, 4096
"""Tokens. Above the largest, a GPU computes longer than its kernels take to launch (estimated: `make bench-gpu`)."""


@dataclass(frozen=True, slots=True)
class OwnClasses:
    """Classes of models beside vLLM's own: none; the wing `padded` has some.

    `places`: module:class by architecture, for vLLM's registry. `served_as`: the architecture that a config.json is
    computed as; None: as vLLM does. `eager`: the architectures that vLLM cannot compile.
    """

    places: Mapping[str, str] = field(default_factory=dict[str, str])
    served_as: Callable[[Mapping[str, Any]], str | None] = lambda _config: None
    eager: frozenset[str] = frozenset()


VLLMS_ALONE = OwnClasses()
"""No further class."""


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
    if code in _CODE_SERVED_AS:
        replaced["architectures"] = [_CODE_SERVED_AS[code]]
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
