"""How many sequences may run by memory: Algorithm 1 of Pang et al., by whole lengths or by what is held meanwhile."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.wings.generation.settings import MemoryForm
from modelserver.wings.generation.step_limits import (
    LengthMoments,
    MemoryLimit,
    OccupancyMoments,
    exact_batch,
)

LENGTHS: dict[str, Callable[[random.Random], float]] = {
    "chat": lambda chance: chance.gammavariate(4.0, 100.0) + chance.uniform(50.0, 150.0),
    "uniform": lambda chance: chance.uniform(1.0, 1000.0),
    "fixed prompt": lambda chance: 68.4 + chance.gammavariate(3.0, 344.5 / 3.0),
    "all alike": lambda _: 256.0,
}
CAPACITY = 60_000
TRIALS = 3000


def pool(name: str) -> list[float]:
    """Lengths to draw from."""
    chance = random.Random(1)
    return [LENGTHS[name](chance) for _ in range(20_000)]


def moments(lengths: Sequence[float]) -> tuple[float, float]:
    mean = sum(lengths) / len(lengths)
    return mean, sum((tokens - mean) ** 2 for tokens in lengths) / len(lengths)


def overflows(lengths: Sequence[float], batch: int) -> float:
    """The share of batches whose tokens exceed the capacity."""
    chance = random.Random(2)
    return sum(sum(chance.choices(lengths, k=batch)) > CAPACITY for _ in range(TRIALS)) / TRIALS


def whole_batch(lengths: Sequence[float], overflow: float) -> int:
    return math.floor(exact_batch(CAPACITY, *moments(lengths), overflow))


@pytest.mark.slow
@pytest.mark.parametrize("overflow", [0.05, 0.01])
@pytest.mark.parametrize("name", LENGTHS)
def test_memory_overflows_no_more_often_than_agreed(name: str, overflow: float) -> None:
    lengths = pool(name)
    sampling_error = 3.0 * math.sqrt(overflow * (1.0 - overflow) / TRIALS)
    assert overflows(lengths, whole_batch(lengths, overflow)) <= overflow + sampling_error


@pytest.mark.slow
def test_and_not_much_less_often_or_memory_would_be_wasted() -> None:
    lengths = pool("chat")
    assert overflows(lengths, whole_batch(lengths, 0.05) + 3) > 0.05


@pytest.mark.slow
@given(
    capacity=st.integers(1, 10**7),
    mean=st.floats(1.0, 1e4),
    deviation=st.floats(0.0, 1e4),
    overflow=st.floats(1e-6, 0.5),
)
def test_the_exact_batch_solves_its_equation(capacity: int, mean: float, deviation: float, overflow: float) -> None:
    variance = deviation**2
    batch = exact_batch(capacity, mean, variance, overflow)
    theta = NormalDist().inv_cdf(1.0 - overflow)
    assert batch * mean + theta * math.sqrt(batch * variance) == pytest.approx(capacity, rel=1e-6)


def test_moments_are_exact_while_all_is_remembered_then_follow_a_change() -> None:
    lengths = LengthMoments(memory=100)
    chance = random.Random(3)
    sample = [chance.randint(1, 500) for _ in range(100)]
    for tokens in sample:
        lengths.observe(tokens)
    assert (lengths.mean, lengths.variance) == pytest.approx(moments(sample))
    for _ in range(1000):
        lengths.observe(1000)
    assert lengths.mean == pytest.approx(1000, rel=0.01)


def test_one_length_is_its_own_mean_and_after_enough_new_ones_weigh_less() -> None:
    lengths = LengthMoments(memory=4)
    lengths.observe(100)
    assert (lengths.count, lengths.mean, lengths.variance) == (1, 100.0, 0.0)
    for tokens in (200, 300, 400, 1050):
        lengths.observe(tokens)
    assert lengths.mean == pytest.approx(250 + 800 / 4)


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
    mean, variance = moments(samples)
    assert held.mean == pytest.approx(mean, rel=0.02)
    assert held.variance == pytest.approx(variance, rel=0.05)
