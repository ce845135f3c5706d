"""How a model that generates embeds as well: by its own pooling, or through an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modelserver.engines.choice import runs_code
from modelserver.engines.pooling import OF_VLLM, Pooling, read_saved
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles, read_json
from modelserver.settings import ModelServerSettings

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM allows."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """How a model that generates embeds as well; `adapter`: the folder of a LoRA adapter, of at most `adapter_rank`."""

    pooling: Pooling
    adapter: Path | None = None
    adapter_rank: int = 0


def read_embedding(model: Path, adapter: Path | None, *, trusted: bool = False) -> Embedding:
    """How to embed beside generation. Raises CannotStart for what cannot be pooled from a generating engine."""
    if adapter is None:
        return Embedding(_generating_pooling(model, trusted=trusted))
    config = read_json(adapter / "adapter_config.json")
    if config is None:
        raise CannotStart(f"{adapter} holds no adapter_config.json: not the folder of a LoRA adapter")
    rank = config.get("r")
    fitting = next((each for each in _LORA_RANKS if isinstance(rank, int) and 0 < rank <= each), None)
    if config.get("peft_type") != "LORA" or fitting is None:
        raise CannotStart(f"{adapter} is not a LoRA adapter of a rank up to {_LORA_RANKS[-1]}: peft_type "
                          f"{config.get('peft_type')}, r {rank}")  # fmt: skip
    return Embedding(_generating_pooling(adapter, trusted=trusted), adapter, fitting)


def _generating_pooling(folder: Path, *, trusted: bool) -> Pooling:
    saved = read_saved(folder, trusted=trusted)
    if saved is None:
        return Pooling.LAST
    first, *others = saved.poolings
    if saved.after:
        refused = f"has a {saved.after[0].kind} module after its pooling"
    elif others or first not in OF_VLLM:
        refused = f"pools by {' and '.join(saved.poolings)}"
    elif saved.leaves_prompts_out:
        refused = "pools without the prompt's tokens (include_prompt)"
    else:
        return first
    raise CannotStart(
        f"{folder} {refused}; a model that also generates can pool by the last token, the mean or the first token of"
        " the whole input, and nothing after it: set model.task to embed"
    )


def embedding_of(settings: ModelServerSettings, files: ModelFiles) -> Embedding:
    """How a model embeds that also generates. Raises CannotStart if it cannot."""
    if not files.is_causal and settings.engine.kind != "synthetic":
        raise CannotStart(f"{files.path} is not a causal language model: it cannot generate; set model.task to embed")
    return read_embedding(files.path, files.adapter, trusted=runs_code(settings))
