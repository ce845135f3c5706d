"""protos/ has no logic, and what both processes compute of the contract by themselves is the same."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.replicas import answers
from aggregator.scheduler import curve as counted
from aggregator.tokenizers import cache, tokenizer
from modelserver import model_files
from modelserver.service import batch
from modelserver.wings.profile import saturation as measured

ROOT = Path(__file__).parents[2]
BrokenRows = Callable[..., Any]


def test_protos_holds_contracts_and_generated_code_alone() -> None:
    listed = subprocess.run(("git", "ls-files", "protos"), cwd=ROOT, capture_output=True, text=True, check=True)
    kept = [Path(name) for name in listed.stdout.split() if (ROOT / name).is_file()]
    assert kept
    assert [
        file
        for file in kept
        if not file.name.endswith((".proto", "_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi", "__init__.py"))
    ] == []


@given(
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.floats(1e-6, 0.01),
    st.lists(st.integers(1, 9000), max_size=8, unique=True),
    st.integers(1, 10_000),
)
def test_a_step_takes_as_long_by_the_curve_of_either_side(
    floor_s: float, fixed_s: float, per_token_s: float, sizes: list[int], tokens: int
) -> None:
    ours = measured.Curve(
        floor_s, fixed_s, per_token_s, 600, measured.Rule.HINGE, 8192, capture_sizes=tuple(sorted(sizes))
    )
    theirs = counted.Curve(**asdict(ours) | {"rule": counted.Rule(ours.rule.value)})
    assert ours.time_s(tokens) == theirs.time_s(tokens)
    assert ours.throughput(tokens) == theirs.throughput(tokens)
    assert {rule.value for rule in measured.Rule} == {rule.value for rule in counted.Rule}


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": b"{}"}, {"b": b"1\0", "a": b"", "tokenizer.json": b"x"}])
def test_a_tokenizer_has_the_same_fingerprint_on_either_side(files: Mapping[str, bytes]) -> None:
    assert model_files.tokenizer_fingerprint(files) == cache.tokenizer_fingerprint(files)
    assert model_files.TOKENIZER_FILE == tokenizer.TOKENIZER_FILE


@pytest.mark.parametrize("broken_rows", [batch.broken_rows, answers.broken_rows])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_that_are_no_result_are_found_by_either_side(broken_rows: BrokenRows, zeros: bool) -> None:
    matrix = np.array([[1, 2], [0, 0], [np.nan, 1], [1, np.inf], [1e-30, 0], [3e38, 3e38]], np.float32)
    found = broken_rows(matrix, zeros=zeros)
    assert found.tolist() == [False, not zeros, True, True, False, False]
    assert broken_rows(np.ones((2, 3), np.float32), zeros=zeros) is None
    assert broken_rows(np.full((1, 2), 1e-30, np.float32), zeros=zeros) is None, "squares that underflow"
