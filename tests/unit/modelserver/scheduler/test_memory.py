"""How many sequences may run by memory: Algorithm 1 of Pang et al., by whole lengths or by what is held meanwhile."""

from __future__ import annotations

import random

import pytest

from modelserver.scheduler.step_limits import MemoryForm, MemoryLimit, OccupancyMoments


def learnt(form: MemoryForm, prompt: int, outputs: list[int], capacity: int = 10_000) -> MemoryLimit:
    limit = MemoryLimit(form, capacity, longest_tokens=2_000)
    for output in outputs:
        limit.observe(prompt, output)
    return limit


def test_until_lengths_are_known_each_may_be_the_longest() -> None:
    assert learnt(MemoryForm.LENGTH, 10, [10] * 29).sequences(0) == 5
    assert learnt(MemoryForm.LENGTH, 10, [10] * 30).sequences(0) > 5


@pytest.mark.parametrize("form", [MemoryForm.LENGTH, MemoryForm.OCCUPANCY])
def test_lengths_that_do_not_vary_fill_the_memory(form: MemoryForm) -> None:
    limit = learnt(form, 50, [50] * 100)
    expected = 100 if form is MemoryForm.LENGTH else 10_000 / 75
    assert limit.sequences(0) == pytest.approx(expected, rel=0.05)


def test_what_varies_leaves_more_room() -> None:
    drawn = random.Random(0)
    even = learnt(MemoryForm.LENGTH, 50, [50] * 500)
    varied = learnt(MemoryForm.LENGTH, 50, [int(drawn.expovariate(1 / 50)) + 1 for _ in range(500)])
    assert varied.sequences(0) < even.sequences(0)


def test_more_is_never_told_to_stop_than_runs() -> None:
    assert learnt(MemoryForm.LENGTH, 900, [900] * 40).sequences(77) == 77


def test_what_is_held_meanwhile_is_what_a_run_shows() -> None:
    """Each length from the prompt's to the last, for one step each."""
    drawn = random.Random(1)
    held = OccupancyMoments(10_000)
    samples: list[int] = []
    for _ in range(2_000):
        prompt, output = drawn.randint(5, 50), int(drawn.expovariate(1 / 40)) + 1
        held.observe(prompt, output)
        samples += range(prompt, prompt + output)
    mean = sum(samples) / len(samples)
    assert held.mean == pytest.approx(mean, rel=0.02)
    assert held.variance == pytest.approx(sum((each - mean) ** 2 for each in samples) / len(samples), rel=0.05)
