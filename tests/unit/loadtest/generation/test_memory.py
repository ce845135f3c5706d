"""The memory limit keeps its promise in a Monte Carlo; the seed's own reading of its equations does not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.lab.generation.memory import (
    linear_batch,
    safety_buffer_tokens,
)
from modelserver.scheduler.step_limits import LengthMoments, exact_batch

Length = Callable[[random.Random], float]

LENGTHS: dict[str, Length] = {
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


def sampling_error(overflow: float) -> float:
    return 3.0 * math.sqrt(overflow * (1.0 - overflow) / TRIALS)


def by_exact(mean: float, variance: float, overflow: float) -> int:
    return math.floor(exact_batch(CAPACITY, mean, variance, overflow))


def by_linear(mean: float, variance: float, overflow: float) -> int:
    return linear_batch(CAPACITY, mean, safety_buffer_tokens(CAPACITY, mean, variance, overflow))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [by_exact, by_linear])
@pytest.mark.parametrize("overflow", [0.05, 0.01])
@pytest.mark.parametrize("name", LENGTHS)
def test_memory_overflows_no_more_often_than_agreed(
    name: str, overflow: float, limit: Callable[[float, float, float], int]
) -> None:
    lengths = pool(name)
    batch = limit(*moments(lengths), overflow)
    assert overflows(lengths, batch) <= overflow + sampling_error(overflow)


@pytest.mark.slow
def test_and_not_much_less_often_or_memory_would_be_wasted() -> None:
    lengths = pool("chat")
    assert overflows(lengths, by_exact(*moments(lengths), 0.05) + 3) > 0.05


@pytest.mark.slow
@given(
    capacity=st.integers(1, 10**7),
    mean=st.floats(1.0, 1e4),
    deviation=st.floats(0.0, 1e4),
    overflow=st.floats(1e-6, 0.5),
)
def test_the_exact_batch_solves_its_equation_and_both_forms_agree(
    capacity: int, mean: float, deviation: float, overflow: float
) -> None:
    variance = deviation**2
    batch = exact_batch(capacity, mean, variance, overflow)
    theta = NormalDist().inv_cdf(1.0 - overflow)
    assert batch * mean + theta * math.sqrt(batch * variance) == pytest.approx(capacity, rel=1e-6)
    buffer = safety_buffer_tokens(capacity, mean, variance, overflow)
    assert abs(linear_batch(capacity, mean, buffer) - batch) <= 1.0 + 1e-6 * batch


def test_moments_are_exact_while_they_remember_all_and_follow_a_change_after() -> None:
    lengths = LengthMoments(memory=100)
    sample = [random.Random(3).randint(1, 500) for _ in range(100)]
    for tokens in sample:
        lengths.observe(tokens)
    mean = sum(sample) / 100
    assert lengths.mean == pytest.approx(mean)
    assert lengths.variance == pytest.approx(sum((tokens - mean) ** 2 for tokens in sample) / 100)
    for _ in range(1000):
        lengths.observe(1000)
    assert lengths.mean == pytest.approx(1000, rel=0.01)


def test_one_length_is_its_own_mean_and_later_ones_weigh_less_once_enough_were_seen() -> None:
    lengths = LengthMoments(memory=4)
    lengths.observe(100)
    assert (lengths.count, lengths.mean, lengths.variance) == (1, 100.0, 0.0)
    for tokens in (200, 300, 400, 1050):
        lengths.observe(tokens)
    assert lengths.mean == pytest.approx(250 + 800 / 4)
