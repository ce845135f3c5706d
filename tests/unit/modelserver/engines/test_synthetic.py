"""The engine without a model: known speed, vectors that follow from the ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engines.engine import IdArray, Matrix
from modelserver.engines.synthetic import Poison, SyntheticEngine, vectors
from tests.fakes.step_engine import facts_of


def packed(*queries: list[int]) -> tuple[IdArray, IdArray]:
    ids = np.array([token for query in queries for token in query], np.int32)
    return ids, np.array([len(query) for query in queries], np.int32)


def vector(query: list[int]) -> Matrix:
    """Float32 [1, 16]."""
    return vectors(*packed(query), 16)


queries = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8), min_size=1, max_size=8)


@given(queries)
def test_a_querys_vector_does_not_depend_on_its_neighbours(batch: list[list[int]]) -> None:
    together = vectors(*packed(*batch), 16)
    assert together.dtype == np.float32
    assert (np.abs(together) <= 1).all()
    for place, query in enumerate(batch):
        assert np.array_equal(together[place], vector(query)[0])


def test_order_and_length_of_the_ids_matter() -> None:
    seen = {vector(query).tobytes() for query in ([1, 2], [2, 1], [1, 2, 0], [0, 1, 2], [1], [2])}
    assert len(seen) == 6


def test_vectors_look_random() -> None:
    matrix = vectors(*packed(*[[number] for number in range(500)]), 64)
    assert abs(matrix.mean()) < 0.02
    assert abs(matrix.std() - 3**-0.5) < 0.02
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    assert np.abs(unit @ unit.T - np.eye(500)).max() < 0.7


def test_a_step_takes_its_fixed_time_and_a_time_for_each_token() -> None:
    slept: list[float] = []
    engine = SyntheticEngine(facts_of(), 0.5, 0.25, sleep=slept.append)
    engine.prepare(*packed([1, 2], [3])).run()
    assert slept == [1.25]
    assert engine.step_s(3) == 1.25


def test_poison_raises_and_leaves_nothing_behind() -> None:
    engine = SyntheticEngine(facts_of(), 0.0, 0.0, Poison(13, "error"))
    with pytest.raises(RuntimeError, match="poison"):
        engine.prepare(*packed([1], [2, 13])).run()
    engine.recover()
    assert engine.prepare(*packed([1])).run().shape == (1, 2)
    assert engine.peak_memory_bytes() > 0
    engine.close()


def test_deadly_poison_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr("os._exit", end)
    with pytest.raises(Ended):
        SyntheticEngine(facts_of(), 0.0, 0.0, Poison(13, "exit")).prepare(*packed([13])).run()
