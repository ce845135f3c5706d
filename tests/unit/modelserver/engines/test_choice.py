"""The direct engine serves only where it agrees with the general one."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest

from modelserver import model_files
from modelserver.engines.choice import build, choose
from modelserver.engines.engine import EngineFacts, IdArray, Matrix, Spans, StepThreads
from modelserver.engines.self_check import batches, compare
from modelserver.engines.synthetic import SyntheticEngine
from modelserver.errors import CannotStart
from modelserver.settings import EngineSettings, ModelServerSettings
from modelserver.startup import warm_up
from tests.support.fake_step_engine import facts_of

FACTS = replace(facts_of(step_tokens=1024, step_queries=64, max_input_tokens=256), dimensions=16)


@dataclass(frozen=True, slots=True)
class Shifted:
    """The synthetic engine's vectors, with an error; it raises where it is told to."""

    facts: EngineFacts = FACTS
    error: float = 0.0
    raises: bool = False
    recoveries: list[int] | None = None
    threads: StepThreads | None = None

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> ShiftedStep:
        del second_segments, spans
        return ShiftedStep(self, token_ids, lengths)

    def recover(self) -> None:
        if self.recoveries is not None:
            self.recoveries.append(1)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ShiftedStep:
    engine: Shifted
    token_ids: IdArray
    lengths: IdArray

    def execute(self) -> Matrix:
        if self.engine.raises:
            raise RuntimeError("another vLLM")
        matrix = SyntheticEngine(FACTS, 0.0, 0.0).prepare(self.token_ids, self.lengths).execute()
        matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True) * np.float32(7)
        matrix[-1, 0] += np.float32(7 * self.engine.error)
        return np.asarray(matrix, np.float32)


def test_an_engine_that_agrees_is_chosen() -> None:
    core, direct = Shifted(), Shifted(error=1e-6)
    choice = choose(core, lambda: direct)
    assert choice.engine is direct
    assert choice.fallback == ""


def test_an_engine_that_disagrees_is_not_chosen_and_the_reason_told() -> None:
    core = Shifted()
    choice = choose(core, lambda: Shifted(error=1e-3))
    assert choice.engine is core
    assert "disagrees" in choice.fallback


def test_an_engine_that_gives_no_numbers_disagrees() -> None:
    assert not compare(Shifted(error=float("nan")), Shifted()).agrees


def test_an_engine_that_cannot_be_made_is_not_chosen() -> None:
    def make() -> Shifted:
        raise AttributeError("attn_groups")

    core = Shifted(recoveries=[])
    choice = choose(core, make)
    assert choice.engine is core
    assert "AttributeError: attn_groups" in choice.fallback
    assert core.recoveries == [1], "the general engine is seen to be in order"


def test_the_tolerance_is_the_dtypes() -> None:
    coarse = replace(FACTS, dtype="bfloat16")
    assert compare(Shifted(error=1e-3), Shifted(facts=coarse)).agrees
    assert not compare(Shifted(error=1e-3), Shifted()).agrees


@pytest.mark.parametrize("facts", [FACTS, facts_of(step_tokens=20, step_queries=3, max_input_tokens=4)])
def test_the_compared_batches_are_valid_for_any_engine(facts: EngineFacts) -> None:
    seen: set[int] = set()
    for token_ids, lengths in batches(facts):
        assert 0 < lengths.size <= facts.step_query_capacity
        assert 0 < token_ids.size == lengths.sum() <= facts.step_token_capacity
        assert 0 < lengths.min() <= lengths.max() <= facts.max_input_tokens
        assert 0 <= token_ids.min() <= token_ids.max() < facts.vocabulary_size
        seen.update(lengths.tolist())
    assert {1, facts.max_input_tokens} <= seen


def test_a_step_too_large_for_the_memory_stops_the_start_with_what_to_do() -> None:
    with pytest.raises(CannotStart, match="ENGINE__STEP_TOKENS"):
        warm_up(Shifted(raises=True))


@pytest.mark.parametrize(
    ("kind", "on_cpu", "causal", "tried"),
    [
        ("auto", True, True, True),
        ("auto", False, False, True),
        ("auto", False, True, False),
        ("direct", False, True, True),
        ("core", True, False, False),
    ],
)
def test_the_direct_engine_is_tried_but_for_causal_models_on_a_gpu(
    kind: Literal["auto", "direct", "core"], on_cpu: bool, causal: bool, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = StepThreads(2, lambda _: None)
    core, direct = Shifted(facts=replace(FACTS, on_cpu=on_cpu), threads=threads), Shifted()

    def options(**_values: object) -> None: ...

    module = SimpleNamespace(LoadOptions=options, load=lambda _: core)
    monkeypatch.setitem(sys.modules, "modelserver.engines.core", module)
    monkeypatch.setitem(sys.modules, "modelserver.engines.direct", SimpleNamespace(DirectEngine=lambda _: direct))
    settings = ModelServerSettings(engine=EngineSettings(kind=kind))
    choice = build(settings, replace(model_files.read(model_files.locate("", ""), ""), is_causal=causal))
    assert choice.engine is (direct if tried else core)
    assert choice.fallback == ""
    assert choice.threads is (threads if on_cpu else None), "a GPU's steps do not depend on the threads"


def test_an_error_of_the_system_at_load_is_told_with_where_it_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    def options(**_values: object) -> None: ...

    monkeypatch.setitem(sys.modules, "modelserver.engines.core", SimpleNamespace(LoadOptions=options, load=load))
    files = model_files.read(model_files.locate("", ""), "")
    with pytest.raises(CannotStart, match=r"Permission denied \(raised by load in .*test_choice\.py, line \d+\)"):
        build(ModelServerSettings(), files)
