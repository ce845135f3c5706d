"""Damaged weights, too little memory, a tokenizer of another model: each is told in one line, before vLLM loads."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modelserver import model_files, weights
from modelserver.errors import CannotStart
from tests.support.model_folder import change

PLENTY = 1 << 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_files.locate("", ""), tmp_path / "model"))


def check(model: Path, free_bytes: int = PLENTY) -> None:
    weights.check(model_files.read(model, "r1"), lambda: free_bytes)


def truncate(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def scribble(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"<html>404</html>")


def forget_architecture(model: Path) -> None:
    change(model, "config.json", architectures=None)


def take_fewer_words(model: Path) -> None:
    change(model, "config.json", vocab_size=30_000)


def add_a_decoder(model: Path) -> None:
    change(model, "config.json", architectures=["T5Model"], is_encoder_decoder=True)


def test_a_sound_model_passes(model: Path) -> None:
    check(model)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (truncate, "model.safetensors is damaged or no safetensors file: .*Fetch it again"),
        (scribble, "model.safetensors is damaged or no safetensors file: .*Fetch it again"),
        (forget_architecture, "config.json names no architecture: save the model with save_pretrained"),
        (take_fewer_words, "has token 30521, and the model knows 30000: it is another model's"),
        (add_a_decoder, "T5Model in .* is an encoder with a decoder, which vLLM does not serve"),
    ],
)
def test_what_is_wrong_with_a_model_is_told_in_one_line(spoil: Callable[[Path], None], said: str, model: Path) -> None:
    spoil(model)
    with pytest.raises(CannotStart, match=said) as refused:
        check(model)
    assert "\n" not in str(refused.value)


def test_a_model_larger_than_the_memory_is_refused_with_both_figures(model: Path) -> None:
    with pytest.raises(CannotStart, match=r"take at least 0\.0 GiB, and 0\.0 GiB of memory are free: free some"):
        check(model, 1 << 20)


@pytest.mark.parametrize(
    ("said", "free_bytes"), [("1000\n234", 1234 << 20), ("[N/A]", sys.maxsize), (None, sys.maxsize)]
)
def test_the_memory_of_gpus_is_what_the_driver_calls_free_or_unlimited(
    said: str | None, free_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is not None:
        driver = tmp_path / "nvidia-smi"
        driver.write_text(f"#!/bin/sh\necho '{said}'\n")
        driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert weights.free_memory(on_cpu=False) == free_bytes
