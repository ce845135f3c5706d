"""How hidden states become a vector, by the files of a model or of its LoRA adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from modelserver.errors import CannotStart
from modelserver.model_files import read_json

_MODULES = frozenset(("Transformer", "Pooling", "Normalize"))
_MODES = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""As vLLM allows them."""


class Pooling(StrEnum):
    """Of the hidden states of one input: those of its last token, their mean, or those of its first token."""

    LAST = "last"
    MEAN = "mean"
    CLS = "cls"


@dataclass(frozen=True, slots=True)
class Embedding:
    """How a model that generates embeds as well; `adapter`: the folder of a LoRA adapter, of at most `adapter_rank`."""

    pooling: Pooling
    adapter: Path | None = None
    adapter_rank: int = 0


def read_embedding(model: Path, adapter: Path | None) -> Embedding:
    """How to embed beside generation. Raises CannotStart for what cannot be pooled from a generating engine."""
    if adapter is None:
        return Embedding(read_pooling(model))
    config = read_json(adapter / "adapter_config.json")
    if config is None:
        raise CannotStart(f"{adapter} holds no adapter_config.json: not the folder of a LoRA adapter")
    rank = config.get("r")
    fitting = next((each for each in _LORA_RANKS if isinstance(rank, int) and 0 < rank <= each), None)
    if config.get("peft_type") != "LORA" or fitting is None:
        raise CannotStart(f"{adapter} is not a LoRA adapter of a rank up to {_LORA_RANKS[-1]}: peft_type "
                          f"{config.get('peft_type')}, r {rank}")  # fmt: skip
    return Embedding(read_pooling(adapter), adapter, fitting)


def read_pooling(folder: Path) -> Pooling:
    """From modules.json and 1_Pooling/config.json; without them the last token. Raises CannotStart for another one."""
    modules = read_json(folder / "modules.json") or []
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if others := [kind for kind in kinds if kind not in _MODULES]:
        raise CannotStart(
            f"{folder / 'modules.json'} has a {others[0]} module, which a model that also generates cannot run:"
            " set model.task to embed"
        )
    paths = [str(module.get("path", "")) for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"]
    config = read_json(folder / (paths[0] if paths else "1_Pooling") / "config.json")
    return Pooling.LAST if config is None else _pooling(config, folder)


def _pooling(config: Mapping[str, Any], folder: Path) -> Pooling:
    modes = [name for name, wanted in config.items() if name.startswith("pooling_mode") and wanted is True]
    if len(modes) != 1 or modes[0] not in _MODES or config.get("include_prompt") is False:
        asked = ", ".join(modes) or "none"
        without = " without the prompt's tokens" if config.get("include_prompt") is False else ""
        raise CannotStart(
            f"{folder} pools by {asked}{without}; a model that also generates can pool by the last token, the mean or"
            " the first token of the whole input: set model.task to embed"
        )
    return Pooling(_MODES[modes[0]])
