"""The direct engine serves only where it agrees with the general one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modelserver.engines.engine import EngineFacts
from modelserver.wings.direct.agreement import batches, compare
from modelserver.wings.direct.choice import choose
from tests.support.fake_step_engine import facts_of
from tests.support.shifted_engine import FACTS, Shifted


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
