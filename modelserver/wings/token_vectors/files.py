"""What a folder says of a model that gives a vector of each token: every key is known, or refused.

A key, and a missing key, means the same as in sentence-transformers 6.2; of BGE-M3 as in FlagEmbedding 1.3.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from modelserver.engines.pooling import (
    OF_TOKEN,
    Layer,
    Modules,
    Pooling,
    check_sentence_config,
    read_config,
    read_listed,
)
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles, gives_tokens, read_json, sentence_config
from modelserver.tokenizer_check import served_tokenizer
from modelserver.wings.modules.layers import Normalize, read_dense, read_layer_norm, read_normalize
from modelserver.wings.token_vectors.layers import Projection
from protos.modelserver.v1 import modelserver_pb2 as pb

_NAMES = ("module_input_name", "module_output_name")
_SIDES = ("query", "document")
_WHOLE_KEYS = frozenset(
    (
        *("__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name"),
        *("attend_to_expansion_tokens", "do_query_expansion", "document_length", "document_prefix"),
        *("query_expansion", "query_length", "query_prefix", "skiplist_words"),
    )
)
_PYLATE_KEYS = _WHOLE_KEYS - {"__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name"}
_MASK_KEYS = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
_EXPANSION_KEYS = frozenset(("strategy", "attend", "token", "length"))
_USUAL_LENGTH = 32  # of an expanded query, where the files give none
_LAYERS: Mapping[str, Callable[[Path], Layer]] = {
    "Dense": partial(read_dense, of=OF_TOKEN),
    "LayerNorm": read_layer_norm,
    "Normalize": partial(read_normalize, of=OF_TOKEN),
}
MULTI_VECTOR, SPARSE = "multi_vector", "sparse"
"""The outputs, and the values of `model.task` that ask for them."""


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The computation behind the transformer, and how texts become sequences.

    `unattended`: the id that fills queries up, where the other tokens do not attend to it; None: they do.
    `runs_padded`: vLLM has no class that computes it so.
    """

    modules: Modules
    normalizes: bool
    prompts: tuple[str, str]
    described: pb.TokenVectors
    unattended: int | None = None
    runs_padded: bool = False


def read(files: ModelFiles, output: str) -> TokenVectors:
    """How the model in a folder gives a vector of each token (`multi_vector`), or a weight. Raises CannotStart."""
    folder = files.path
    if (folder / "sparse_linear.pt").is_file():
        return _bge_m3(files, output)
    if output == SPARSE:
        raise CannotStart(f"{folder} has no sparse_linear.pt: it gives no weights of tokens; set model.task to auto")
    if not gives_tokens(folder):
        raise CannotStart(
            f"{folder} is no MultiVectorEncoder, PyLate or ColBERT model, and no BGE-M3: set model.task to auto"
        )
    whole = read_json(folder / "config_sentence_transformers.json") or {}
    if unknown := sorted(whole.keys() - _WHOLE_KEYS):
        raise CannotStart(
            f"config_sentence_transformers.json in {folder} sets {unknown[0]} to {json.dumps(whole[unknown[0]])}, which"
            " is not known"
        )
    if whole.get("default_prompt_name") is not None:
        raise CannotStart(f"config_sentence_transformers.json in {folder} sets default_prompt_name: remove it")
    check_sentence_config(folder)
    if read_listed(folder) is None:
        return _stanford(files)
    return _listed(files, whole)


def _listed(files: ModelFiles, whole: Mapping[str, Any]) -> TokenVectors:
    """A folder with modules.json: saved by sentence-transformers or PyLate."""
    folder, words, sides = files.path, whole.get("skiplist_words"), ["document"]
    layers: list[Layer] = []
    older = whole.get("model_type") == "ColBERT"
    if older and words is None:
        words = list(string.punctuation)
    first, *others = read_listed(folder) or [{}]
    if str(first.get("type", "")).rpartition(".")[2] != "Transformer":
        raise CannotStart(f"{folder / 'modules.json'} begins with a {first.get('type')}, not with a Transformer")
    for module in others:
        kind, place = str(module.get("type", "")).rpartition(".")[2], folder / str(module.get("path", ""))
        if kind == "MultiVectorMask":
            config = read_config(place, _MASK_KEYS, optional=True)
            words, tasks = config.get("skiplist_words") or (), config.get("skiplist_tasks") or ["document"]
            sides = [tasks] if isinstance(tasks, str) else tasks
            if config.get("keep_only_token_ids"):
                raise CannotStart(f"{place} keeps only some token ids (keep_only_token_ids), as of images")
        elif kind in _LAYERS:
            layers.append(_LAYERS[kind](place))
        elif kind == "Dropout":
            read_config(place, ("dropout",), optional=True)  # of training alone
        else:
            raise CannotStart(
                f"{folder / 'modules.json'} has a {kind} module, which is not computed for each token: Dense,"
                " LayerNorm, Normalize, Dropout and MultiVectorMask are"
            )
    normalizes = older or bool(layers and isinstance(layers[-1], Normalize))
    if layers and isinstance(layers[-1], Normalize):
        layers.pop()
    prompts = {side: str((whole.get("prompts") or {}).get(side) or "") for side in _SIDES}
    lengths, expansion = _lengths(folder, whole)
    return _made(
        files,
        layers,
        normalizes=normalizes,
        prompts=prompts,
        prefixes={side: str(whole.get(f"{side}_prefix") or "") for side in _SIDES},
        lengths=lengths,
        expansion=expansion,
        left_out=_ids(served_tokenizer(files), words or ()),
        sides=sides,
    )


def _lengths(folder: Path, whole: Mapping[str, Any]) -> tuple[dict[str, int], Mapping[str, Any] | None]:
    """The most tokens of each side (0: the model's), and how queries are filled up: PyLate says it in its own words."""
    sentence = sentence_config(folder)
    lengths = {side: int(sentence.get(f"{side}_length") or whole.get(f"{side}_length") or 0) for side in _SIDES}
    if "query_expansion" in sentence:
        return lengths, sentence["query_expansion"]
    if "query_expansion" in whole:
        return lengths, whole["query_expansion"]
    if whole.keys().isdisjoint(_PYLATE_KEYS) or whole.get("do_query_expansion") is False:
        return lengths, None
    length, lengths["query"] = lengths["query"] or _USUAL_LENGTH, 0
    return lengths, {"strategy": "fixed", "attend": whole.get("attend_to_expansion_tokens"), "length": length}


def _stanford(files: ModelFiles) -> TokenVectors:
    """A folder of Stanford's ColBERT: its projection is among the transformer's weights."""
    folder = files.path
    told = read_json(folder / "artifact.metadata") or {}
    weights = next((each for each in ("model.safetensors", "pytorch_model.bin") if (folder / each).is_file()), "")
    dense = Projection(folder, weights, files.hidden_size, int(told.get("dim") or 128))
    expansion = {
        "strategy": "fixed",
        "attend": told.get("attend_to_mask_tokens"),
        "length": told.get("query_maxlen") or _USUAL_LENGTH,
    }
    tokenizer = served_tokenizer(files)
    return _made(
        files,
        [dense],
        normalizes=True,
        prompts=dict.fromkeys(_SIDES, ""),
        prefixes={
            "query": told.get("query_token_id") or "[unused0]",
            "document": told.get("doc_token_id") or "[unused1]",
        },
        lengths={"query": 0, "document": int(told.get("doc_maxlen") or 0)},
        expansion=expansion,
        left_out=_ids(tokenizer, string.punctuation if told.get("mask_punctuation", True) else ()),
        sides=["document"],
        runs_padded=True,
    )


def _bge_m3(files: ModelFiles, output: str) -> TokenVectors:
    """BGE-M3: a vector of each token but the first, or a weight of each that is not special."""
    tokenizer = served_tokenizer(files)
    first, *_, last = tokenizer.encode("a").ids
    sparse = output == SPARSE
    name = "sparse_linear.pt" if sparse else "colbert_linear.pt"
    dense = Projection(
        files.path, name, files.hidden_size, 1 if sparse else files.hidden_size, bias=True, rectifies=sparse
    )
    special = {first, last, *_ids(tokenizer, [_special(files, name) for name in ("pad_token", "unk_token")])}
    described = pb.TokenVectors(
        left_out_ids=sorted(special) if sparse else [first],
        left_out_of_queries=not sparse,
        left_out_of_documents=not sparse,
        weights=sparse,
    )
    return TokenVectors(_modules([dense]), not sparse, ("", ""), described)


def _made(
    files: ModelFiles,
    layers: Sequence[Layer],
    *,
    normalizes: bool,
    prompts: Mapping[str, str],
    prefixes: Mapping[str, str],
    lengths: Mapping[str, int],
    expansion: Mapping[str, Any] | None,
    left_out: Collection[int],
    sides: Collection[str],
    runs_padded: bool = False,
) -> TokenVectors:
    tokenizer = served_tokenizer(files)
    if unknown := [side for side in sides if side not in _SIDES]:
        raise CannotStart(f"{files.path} leaves tokens out of {unknown[0]}: {' and '.join(_SIDES)} are known")
    prefix_ids, texts = dict[str, list[int]](), dict[str, str]()
    for side in _SIDES:
        prefix_ids[side] = list(_prefix(tokenizer, prefixes[side]))
        before = "" if prefix_ids[side] else prefixes[side]
        texts[side] = before + prompts[side].removeprefix(prefixes[side])
    described = pb.TokenVectors(
        query_prefix=prefix_ids["query"],
        document_prefix=prefix_ids["document"],
        query_tokens=lengths["query"],
        document_tokens=lengths["document"],
        left_out_ids=sorted(left_out),
        left_out_of_queries="query" in sides,
        left_out_of_documents="document" in sides,
    )
    unattended = None
    if expansion is not None:
        unattended = _expand(files, tokenizer, expansion, described)
    prompts_of_sides = texts["query"], texts["document"]
    padded = runs_padded or unattended is not None
    return TokenVectors(_modules(layers), normalizes, prompts_of_sides, described, unattended, padded)


def _expand(
    files: ModelFiles, tokenizer: Tokenizer, expansion: Mapping[str, Any], described: pb.TokenVectors
) -> int | None:
    """Write down how queries are filled up; the id if the other tokens do not attend to it. Raises CannotStart."""
    length, strategy = expansion.get("length"), expansion.get("strategy")
    if expansion.keys() - _EXPANSION_KEYS or strategy not in ("fixed", "min") or not isinstance(length, int):
        raise CannotStart(f"{files.path} expands queries by {json.dumps(expansion)}, which is not known")
    wanted = expansion.get("token") or _special(files, "mask_token") or _special(files, "eos_token")
    token_id = tokenizer.token_to_id(wanted) if wanted else None
    if token_id is None:
        raise CannotStart(f"{files.path} expands queries with {wanted or 'a mask'}, which is no token of its tokenizer")
    described.expansion_id, described.expansion_tokens = token_id, length
    if strategy == "fixed":
        described.query_tokens = length
    elif described.query_tokens:
        described.query_tokens = max(described.query_tokens, length)
    return None if expansion.get("attend") else token_id


def _modules(layers: Sequence[Layer]) -> Modules:
    """The mean of a span of one token is the token's."""
    return Modules((Pooling.MEAN,), tuple(layers))


def _prefix(tokenizer: Tokenizer, prefix: str) -> Iterator[int]:
    """The id of a prefix that is a token of its own, with its blank or without; none: it is text."""
    for token in (prefix, *prefix.split()[:1]) if prefix else ():
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            yield token_id
            return


def _ids(tokenizer: Tokenizer, words: Collection[str]) -> list[int]:
    """The ids of words that are tokens; others would stand for every unknown word."""
    return [token_id for word in words if (token_id := tokenizer.token_to_id(word)) is not None]


def _special(files: ModelFiles, name: str) -> str:
    """A special token that the tokenizer's files name."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        told = json.loads(files.tokenizer.get(file, b"{}")).get(name)
        if told:
            return str(told["content"] if isinstance(told, dict) else told)
    return ""
