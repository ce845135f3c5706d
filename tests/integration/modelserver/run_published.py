"""Compute what published models should give: `python -m tests.integration.modelserver.run_published MODEL FOLDER FILE`.

By onnxruntime from the published ONNX file, if the folder has one beside it, and by sentence-transformers from the
folder. A program of its own: both load what the tests' process should not.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.questions import bundled_questions
from loadtest.texts.published import MODELS, onnx_file

Vectors = npt.NDArray[np.float32]

QUESTIONS = 200
_MODULES = (
    *("argparse", "ast", "asyncio", "base64", "bisect", "calendar", "configparser", "contextlib", "copy", "csv"),
    *("datetime", "decimal", "difflib", "email.message", "fractions", "ftplib", "functools", "heapq", "html"),
    *("http.client", "inspect", "itertools", "json", "logging", "math", "os", "pathlib", "pickle", "random", "re"),
    *("shutil", "socket", "ssl", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap"),
    *("threading", "time", "typing", "zipfile"),
)
_LEAST, _MOST = 80, 600
"""Characters of a document."""


def questions() -> list[str]:
    return bundled_questions()[:QUESTIONS]


def labelled() -> tuple[list[str], list[str]]:
    """Queries and the document of each: the first lines of docstrings of Python's library, and the rest of them."""
    pairs: dict[str, str] = {}
    for module in map(importlib.import_module, _MODULES):
        for _, member in inspect.getmembers(module, callable):
            first, _, rest = (inspect.getdoc(member) or "").partition("\n")
            text = " ".join(rest.split())[:_MOST]
            if (
                len(text) >= _LEAST
                and first.endswith(".")
                and str(getattr(member, "__module__", "")) == module.__name__
            ):
                pairs.setdefault(first, text)
    return list(pairs), list(pairs.values())


def mean_reciprocal_rank(queries: Vectors, documents: Vectors) -> float:
    """Of each query's own document among the first ten, by cosine of unit vectors."""
    cosines = queries @ documents.T
    ranks = (cosines > cosines.diagonal()[:, None]).sum(1) + 1
    return float(np.where(ranks <= 10, 1.0 / ranks, 0.0).mean())


def by_onnx(name: str, folder: Path, texts: Sequence[str]) -> Vectors:
    """Unit vectors, pooled as the model's card says, a text at a time: without padding."""
    import onnxruntime  # noqa: PLC0415 - not for models without such a file
    from tokenizers import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = onnxruntime.InferenceSession(str(onnx_file(folder)), providers=["CPUExecutionProvider"])
    rows: list[Vectors] = []
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        fed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states: Any = session.run(None, fed)[0]
        rows.append(states[0, 0] if MODELS[name].pooling == "cls" else states[0].mean(0))
    vectors = np.stack(rows)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def main(name: str, folder: Path, file: Path) -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - after what is quick to fail

    model: Any = SentenceTransformer(str(folder), device="cpu")
    queries, documents = labelled()
    prompts = {"query": "query", "document": "document"}
    has = {each: each for each in prompts if model.prompts.get(each)}
    found: dict[str, Any] = {
        "query_texts": np.array(queries),
        "document_texts": np.array(documents),
        "questions": model.encode(questions()),
        "queries": model.encode(queries, prompt_name=has.get("query")),
        "documents": model.encode(documents, prompt_name=has.get("document")),
    }
    if name in MODELS:
        found["by_onnx"] = by_onnx(name, folder, questions())
    np.savez(file, **found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
