"""The modules after a model's transformer, as sentence-transformers saved them: every key is known, or refused.

A key, and a missing key, means the same as in sentence-transformers 6.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from modelserver.errors import CannotStart
from modelserver.model_files import POOLS_IN_CODE, read_json, sentence_config

if TYPE_CHECKING:
    from torch import nn

_SAVED_BY = "sentence_transformers."
_SPLADE = ("MLMTransformer", "SpladePooling")
"""Modules of models whose row has a number for each token of the vocabulary."""
_MODULE_KEYS = frozenset(("idx", "kwargs", "name", "path", "type"))
NAMES = ("module_input_name", "module_output_name")
"""Keys of a module's config: the value that it takes, and the one that it gives."""
OF_TEXT, OF_TOKEN = "sentence_embedding", "token_embeddings"
"""Values of theirs: the vector of a text, and those of its tokens."""
_TRANSFORMER_KEYS: Mapping[str, Collection[Any]] = {
    "backend": (None, "torch"),
}
"""Keys of a sentence config, and the values that are computed."""
_OUTPUTS: Mapping[str, tuple[str, str]] = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
}
"""The output of transformers' model, and the module's name for it, by the task of a Transformer module."""
_READ_ELSEWHERE = frozenset(
    (
        *("do_lower_case", "document_length", "max_seq_length", "modality_config", "processing_kwargs"),
        *("processor_kwargs", "query_expansion", "query_length", "tokenizer_args", "tokenizer_name_or_path"),
        "unpad_inputs",
    )
)
"""Keys of a sentence config that `model_files` reads, or that change no vector."""
_HOW_COMPUTED = frozenset(("add_pooling_layer", "attn_implementation", "dtype", "torch_dtype", "trust_remote_code"))
"""Arguments of a sentence config for transformers' model that change no vector but by rounding."""


class Pooling(StrEnum):
    """How the hidden states of one input are pooled, in the order in which old files join them."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT = "mean_sqrt_len_tokens"
    WEIGHTED_MEAN = "weightedmean"
    LAST = "lasttoken"


_OLD_KEYS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT,
    "pooling_mode_weightedmean_tokens": Pooling.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
OF_VLLM = frozenset((Pooling.CLS, Pooling.MEAN, Pooling.LAST))
"""The poolings of vLLM."""


class Layer(Protocol):
    """A module after the pooling, as its files configure it; the wing `modules` has some."""

    @property
    def folder(self) -> Path: ...

    @property
    def inputs(self) -> int | None:
        """Dimensions that it takes; None: any."""
        ...

    @property
    def outputs(self) -> int | None:
        """Dimensions that it gives; None: as many as it takes."""
        ...

    @property
    def rectifies(self) -> bool:
        """Whether a row may be all zero behind it."""
        ...

    def load(self) -> nn.Module:
        """The module with its weights, float32 on the CPU; imports torch. Raises CannotStart."""
        ...


ReadLayer = Callable[[Path], Layer]
"""Reads the folder of a module after the pooling. Raises CannotStart."""


@dataclass(frozen=True, slots=True)
class SavedModule:
    """A module after the pooling, by its class in sentence-transformers, not read yet."""

    kind: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules after the transformer: poolings whose vectors are joined, and layers.

    `prompts`: token ids that are left out of the pooling where an input begins with them, longest first.
    """

    poolings: tuple[Pooling, ...]
    layers: tuple[Layer, ...] = ()
    leaves_prompts_out: bool = False
    prompts: tuple[tuple[int, ...], ...] = ()

    @property
    def needs_place(self) -> bool:
        """Whether they are more than one of the three poolings that vLLM has."""
        first, *others = self.poolings
        return bool(self.layers or self.prompts or others) or first not in OF_VLLM


@dataclass(frozen=True, slots=True)
class SavedModules:
    """The modules that a model's files list: poolings whose joined vector has `width` dimensions, and `after` them.

    Neither a last Normalize, which the aggregator does, nor modules of training alone are among those.
    """

    poolings: tuple[Pooling, ...]
    width: int
    after: tuple[SavedModule, ...] = ()
    leaves_prompts_out: bool = False


def read_modules(folder: Path, layers: Mapping[str, ReadLayer], *, trusted: bool) -> Modules | None:
    """The modules of a folder, with what is known of each layer; None as in `read_saved`.

    `layers`: the readers of modules after the pooling, by their classes. Raises CannotStart for one without a reader,
    and as `read_saved` does.
    """
    saved = read_saved(folder, trusted=trusted)
    if saved is None:
        return None
    file, read, width = folder / "modules.json", list[Layer](), saved.width
    for module in saved.after:
        if module.kind not in layers:
            raise CannotStart(f"{file} has a {module.kind} module, which this build does not compute")
        layer = layers[module.kind](module.folder)
        if layer.inputs not in (None, width):
            raise CannotStart(f"{layer.folder.name} in {file} takes {layer.inputs} dimensions, and gets {width}")
        width = layer.outputs or width
        read.append(layer)
    return Modules(saved.poolings, tuple(read), saved.leaves_prompts_out)


def read_saved(folder: Path, *, trusted: bool) -> SavedModules | None:
    """The modules that a folder lists; None if it names none, or its published code pools.

    `trusted`: the code that was published with the model is run. Raises CannotStart for modules not computed here.
    """
    file = folder / "modules.json"
    listed = read_listed(folder)
    if listed is None:
        check_transformer(folder)
        pooling = folder / "1_Pooling"
        return _pooling(pooling) if pooling.is_dir() else None
    kinds = [_kind(module, file, trusted=trusted) for module in listed]
    if kinds == ["Transformer"] and (read_json(folder / "config.json") or {}).get("model_type") in POOLS_IN_CODE:
        return None
    if kinds[0] != "Transformer" or kinds[1:2] != ["Pooling"]:
        raise CannotStart(
            f"{file} lists {', '.join(kinds)}: a model is served that begins with a Transformer and a Pooling module"
        )
    if str(listed[0]["type"]).startswith(_SAVED_BY):
        check_transformer(folder)
    pooled = _pooling(folder / str(listed[1].get("path", "")))
    rest = [
        SavedModule(kind, folder / str(module.get("path", "")))
        for kind, module in zip(kinds[2:], listed[2:], strict=True)
    ]
    for module in rest:
        if module.kind in ("Transformer", "Pooling"):
            raise CannotStart(f"{file} has a second {module.kind} module, which is not computed")
        if module.kind == "Dropout":
            read_config(module.folder, ("dropout",), optional=True)
    if kinds[-1] == "Normalize":
        check_normalize(rest.pop().folder)
    after = tuple(module for module in rest if module.kind != "Dropout")  # which is of training alone
    return replace(pooled, after=after)


def check_normalize(folder: Path, of: str = OF_TEXT) -> None:
    """Raises CannotStart for a Normalize module that normalizes something else than the vector."""
    check_names(read_config(folder, NAMES, optional=True), folder / "config.json", of)


def read_listed(folder: Path) -> list[dict[str, Any]] | None:
    """The modules that sentence-transformers saved, the first of them in the folder itself; None: no such list.

    Raises CannotStart for another file.
    """
    file = folder / "modules.json"
    listed = read_json(file)
    if listed is None:
        return None
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        raise CannotStart(f"{file} lists no modules")
    if path := listed[0].get("path"):
        raise CannotStart(f"{file} has its Transformer in {path}: it must be in the model's folder itself")
    return listed


def _kind(module: Mapping[str, Any], file: Path, *, trusted: bool) -> str:
    """The class of a module. Raises CannotStart for a module that is not computed here."""
    type_ = str(module.get("type", ""))
    kind = type_.rpartition(".")[2]
    if unknown := sorted(module.keys() - _MODULE_KEYS):
        raise CannotStart(f"{file} says {unknown[0]} of its {kind} module, which is not known")
    if kind in _SPLADE:
        raise CannotStart(
            f"{file} has a {type_} module: SPLADE is not served, as its row has the size of the vocabulary; BGE-M3 with"
            " model.task sparse gives weights of tokens"
        )
    if kind not in ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"):
        raise CannotStart(
            f"{file} has a {type_} module, which is not computed: Transformer, Pooling, Dense, LayerNorm, Normalize and"
            " Dropout are"
        )
    if type_.startswith(_SAVED_BY):
        return kind
    if kind == "Transformer":
        model_type = (read_json(file.parent / "config.json") or {}).get("model_type")
        if trusted or model_type in POOLS_IN_CODE:
            return kind
    raise CannotStart(
        f"{file} has a {type_} module, code that was published with the model and is not run: only that of a"
        " Transformer is, with a pinned model.revision and trust_remote_code in engine.vllm_options"
    )


def check_sentence_config(folder: Path, task: str = "feature-extraction") -> None:
    """Raises CannotStart for a sentence config that asks for other hidden states or logits."""
    embeds = task == "feature-extraction"
    output, given_as = _OUTPUTS[task]
    for key, value in sentence_config(folder).items():
        if key in ("model_args", "model_kwargs", "config_args", "config_kwargs"):
            known = isinstance(value, dict | None) and not (value or {}).keys() - _HOW_COMPUTED
        elif key == "modality_config":
            text = value.get("text") or {}
            known = text.get("method", "forward") == "forward"
            known &= text.get("method_output_name", output) == output and (embeds or "message" not in value)
        elif key in ("transformer_task", "module_output_name"):
            known = value in (None, task if key == "transformer_task" else given_as)
        else:
            known = key in _READ_ELSEWHERE or value in _TRANSFORMER_KEYS.get(key, ())
        if not known:
            raise CannotStart(f"{folder} sets {key} of its Transformer module to {json.dumps(value)}, which is not"
                              " computed")  # fmt: skip


def check_transformer(folder: Path, task: str = "feature-extraction") -> None:
    """Raises CannotStart for a sentence config, or one of the whole model, that asks for other vectors or scores.

    `task`: transformers' name of the model's task.
    """
    check_sentence_config(folder, task)
    embeds = task == "feature-extraction"
    whole = read_json(folder / "config_sentence_transformers.json") or {}
    kind = "SentenceTransformer" if embeds else "CrossEncoder"
    if whole.get("model_type", kind) != kind:
        given = "one vector a text" if embeds else "scores"
        raise CannotStart(f"{folder} is a {whole['model_type']} of sentence-transformers: it does not give {given}")
    if not embeds and whole.get("default_prompt_name") is not None:
        raise CannotStart(
            f"config_sentence_transformers.json in {folder} sets default_prompt_name to {whole['default_prompt_name']}:"
            " no prompt is put before a pair; remove it if the model was trained without one"
        )
    if whole.get("truncate_dim") is not None:
        raise CannotStart(
            f"config_sentence_transformers.json in {folder} shortens vectors to truncate_dim {whole['truncate_dim']}:"
            " remove it, and let clients ask for dimensions (matryoshka_dimensions lists the sizes)"
        )


def read_config(folder: Path, known: Collection[str], *, optional: bool = False) -> dict[str, Any]:
    file = folder / "config.json"
    config = read_json(file)
    if config is None and optional:
        return {}
    if not isinstance(config, dict):
        raise CannotStart(f"{file} is missing, or no object: it says how the module computes")
    if unknown := sorted(config.keys() - set(known)):
        raise CannotStart(f"{file} sets {unknown[0]} to {json.dumps(config[unknown[0]])}, which is not known")
    return config


def _pooling(folder: Path) -> SavedModules:
    file, sizes = folder / "config.json", ("embedding_dimension", "word_embedding_dimension")
    config = read_config(folder, (*sizes, "include_prompt", "pooling_mode", *_OLD_KEYS))
    named = config.get("pooling_mode")
    if named is None:
        named = [mode for key, mode in _OLD_KEYS.items() if flag(config, key, file)] or [Pooling.MEAN]
    modes = [named] if isinstance(named, str) else named
    if not isinstance(modes, list) or not modes or any(mode not in set(Pooling) for mode in modes):
        raise CannotStart(f"{file} pools by {json.dumps(named)}: {', '.join(Pooling)} are computed")
    size = size_of(config, next((key for key in sizes if key in config), sizes[0]), file)
    leaves_out = not flag(config, "include_prompt", file, default=True)
    return SavedModules(tuple(map(Pooling, modes)), size * len(modes), leaves_prompts_out=leaves_out)


def check_names(config: Mapping[str, Any], file: Path, of: str = OF_TEXT) -> None:
    """Raises CannotStart for a module that takes or gives something else than the vector `of` a text, or a token."""
    for name in NAMES:
        if config.get(name) not in (None, of):
            raise CannotStart(f"{file} sets {name} to {json.dumps(config[name])}: only {of} is computed")


def flag(config: Mapping[str, Any], key: str, file: Path, *, default: bool = False) -> bool:
    """The truth value of that key. Raises CannotStart."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise CannotStart(f"{file} sets {key} to {json.dumps(value)}: it must be true or false")
    return value


def size_of(config: Mapping[str, Any], key: str, file: Path) -> int:
    """The number of dimensions of that key. Raises CannotStart."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CannotStart(f"{file} sets {key} to {json.dumps(value)}: it must be a number of dimensions")
    return value
