"""The engine without a model: known speed, vectors that follow from the ids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engines.engine import Activation, IdArray, Matrix, Scoring
from modelserver.engines.synthetic import Poison, PoisonMode, SyntheticEngine, vectors
from tests.support.fake_step_engine import facts_of


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


def test_a_step_takes_its_fixed_time_and_a_time_for_each_token() -> None:
    slept: list[float] = []
    engine = SyntheticEngine(facts_of(), 0.5, 0.25, sleep=slept.append)
    engine.prepare(*packed([1, 2], [3])).execute()
    assert slept == [1.25]
    assert engine.step_s(3) == 1.25


def test_scores_are_a_hash_of_a_pairs_ids_from_0_to_1() -> None:
    scoring = Scoring(("",), Activation.SIGMOID)
    engine = SyntheticEngine(replace(facts_of(), dimensions=1, scoring=scoring), 0.0, 0.0)
    pairs = packed(*([101, word, 102, 7, 102] for word in range(500)))
    found = engine.prepare(*pairs).execute()
    assert found.shape == (500, 1)
    assert (found >= 0).all()
    assert (found < 1).all()
    assert np.allclose(found, (vectors(*pairs, 1) + 1) / 2)
    assert abs(float(found.mean()) - 0.5) < 0.05, "they are spread"


@pytest.mark.parametrize(
    ("mode", "token_id", "wrong"),
    [("nan", None, [0, 1, 2]), ("nan_row", None, [0]), ("zeros", None, [0, 1, 2]), ("nan", 7, [1]), ("zeros", 7, [1])],
)
def test_an_engine_that_lies_raises_nothing_and_gives_wrong_rows(
    mode: PoisonMode, token_id: int | None, wrong: list[int]
) -> None:
    poison = Poison(token_id, mode, share=0.0 if token_id else 1.0)
    engine = SyntheticEngine(facts_of(), 0.0, 0.0, poison)
    found = engine.prepare(*packed([1, 2], [3, 7], [4])).execute()
    right = SyntheticEngine(facts_of(), 0.0, 0.0).prepare(*packed([1, 2], [3, 7], [4])).execute()
    value = 0.0 if mode == "zeros" else np.nan
    for row in range(3):
        expected = np.full(2, value, np.float32) if row in wrong else right[row]
        assert np.array_equal(found[row], expected, equal_nan=True)


def test_closing_takes_as_long_as_it_is_set_to() -> None:
    slept: list[float] = []
    SyntheticEngine(facts_of(), 0.0, 0.0, sleep=slept.append, close_s=3.0).close()
    assert slept == [3.0]
