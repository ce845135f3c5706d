"""What a step of a generating engine may hold: what decodes, and as much of prompts as its time allows."""

from __future__ import annotations

import pytest

from modelserver.wings.generation.generator import StepLoad
from modelserver.wings.generation.step_limits import StepCost, StepTokens

COST = StepCost(fixed_s=0.01, per_sequence_s=0.001, per_token_s=0.0001)


def rule(target_s: float = 0.1) -> StepTokens:
    return StepTokens(COST, target_s, most_tokens=2048, most_sequences=128)


@pytest.mark.parametrize(("decoding", "tokens"), [(0, 700), (20, 520), (60, 160), (70, 86), (100, 116)])
def test_prompts_get_what_is_left_of_the_time_and_never_nothing(decoding: int, tokens: int) -> None:
    assert rule().tokens(decoding) == tokens


def test_a_step_holds_no_more_than_the_engine_takes() -> None:
    assert rule(target_s=10.0).tokens(5) == 2048


def test_as_many_run_as_decode_within_the_time() -> None:
    assert rule().sequences() == 70
    assert rule(target_s=10.0).sequences() == 128


def test_a_target_that_a_step_alone_exceeds_starves_nobody() -> None:
    """As much time again as the step takes by itself goes to what it holds."""
    assert rule(target_s=0.001).sequences() == 10
    assert rule(target_s=0.001).tokens(5) == 5 + 50
    assert StepTokens(StepCost(0.0, 0.001, 0.0001), 0.0001, 2048, 128).sequences() == 1


def test_steps_that_take_longer_than_measured_make_the_next_ones_shorter() -> None:
    slow = rule()
    before = slow.tokens(20)
    for _ in range(50):
        slow.observe(StepLoad(100, 20), 2.0 * COST.time_s(StepLoad(100, 20)))
    assert slow.tokens(20) < before / 2
    for _ in range(50):
        slow.observe(StepLoad(100, 20), COST.time_s(StepLoad(100, 20)))
    assert slow.tokens(20) == pytest.approx(before, rel=0.05)


def test_one_stray_step_counts_no_more_than_three_times_its_time() -> None:
    stray = rule()
    stray.observe(StepLoad(100, 20), 100.0)
    assert stray.tokens(0) > 500
