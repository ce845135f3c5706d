"""The memory limit keeps its promise in a Monte Carlo; the seed's own reading of its equations does not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.generation.memory import (
    MemoryController,
    MemoryForm,
    MemoryPolicy,
    linear_batch,
    safety_buffer_tokens,
)
from modelserver.scheduler.memory import LengthMoments, exact_batch

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


def the_seeds_reading(start: int, mean: float, variance: float, overflow: float, updates: int) -> Sequence[int]:
    """Algorithm 1 with line 1 as printed: L0 at the current batch instead of b*."""
    theta = NormalDist().inv_cdf(1.0 - overflow)
    batches = [start]
    for _ in range(updates):
        buffer = CAPACITY - (theta * math.sqrt(batches[-1] * variance) + batches[-1] * mean)
        batches.append(linear_batch(CAPACITY, mean, buffer))
    return batches


@pytest.mark.slow
def test_with_the_buffer_taken_at_the_current_batch_the_limit_grows_without_end() -> None:
    lengths = pool("chat")
    mean, variance = moments(lengths)
    batches = the_seeds_reading(by_exact(mean, variance, 0.05), mean, variance, 0.05, updates=20)
    assert all(later > earlier for earlier, later in pairwise(batches))
    assert overflows(lengths, batches[-1]) > 0.99


def test_without_the_square_equation_12_uses_a_tenth_of_the_memory() -> None:
    mean, variance = moments(pool("chat"))
    as_printed = math.sqrt(exact_batch(CAPACITY, mean, variance, 0.05))
    assert as_printed * mean < 0.1 * CAPACITY


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


@pytest.mark.parametrize(
    ("capacity", "mean", "variance"),
    [(0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, -1.0), (1.0, math.nan, 1.0), (math.inf, 1.0, 1.0)],
)
def test_lengths_that_are_none_are_refused(capacity: float, mean: float, variance: float) -> None:
    with pytest.raises(ValueError, match="not lengths"):
        exact_batch(capacity, mean, variance, 0.05)


@pytest.mark.parametrize("overflow", [0.0, 0.6, -0.1, math.nan])
def test_a_probability_that_is_none_is_refused(overflow: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        exact_batch(1000.0, 10.0, 10.0, overflow)
    with pytest.raises(ValueError, match="probability"):
        MemoryPolicy(1000, 100, 10, overflow=overflow)


@pytest.mark.parametrize("form", MemoryForm)
def test_the_limit_follows_the_lengths_that_were_seen(form: MemoryForm) -> None:
    lengths = pool("chat")
    controller = MemoryController(MemoryPolicy(CAPACITY, 2048, 1000, overflow=0.05, form=form))
    for tokens in lengths[:1000]:
        controller.observe(round(tokens))
    expected = by_exact(*moments(lengths), 0.05)
    assert controller.update(waiting=1, running=1, now_s=0.0) == pytest.approx(expected, rel=0.05)


def test_until_lengths_are_known_only_the_worst_case_is_admitted() -> None:
    controller = MemoryController(MemoryPolicy(CAPACITY, 2048, 1000))
    for _ in range(29):
        controller.observe(10)
    assert controller.update(waiting=9, running=9, now_s=0.0) == controller.batch_limit == CAPACITY // 2048


def test_it_changes_only_while_requests_both_wait_and_run() -> None:
    controller = MemoryController(MemoryPolicy(CAPACITY, 2048, 1000))
    for _ in range(100):
        controller.observe(100)
    before = controller.batch_limit
    assert controller.update(waiting=0, running=5, now_s=0.0) == before
    assert controller.update(waiting=5, running=0, now_s=0.0) == before
    assert controller.update(waiting=5, running=5, now_s=0.0) == 600


def test_what_runs_is_never_put_back_and_b_max_never_passed() -> None:
    controller = MemoryController(MemoryPolicy(CAPACITY, 2048, 700))
    for _ in range(100):
        controller.observe(100)
    assert controller.update(waiting=1, running=650, now_s=0.0) == 650
    assert controller.update(waiting=1, running=900, now_s=0.0) == 700


def test_the_linear_form_renews_its_buffer_only_now_and_then() -> None:
    controller = MemoryController(MemoryPolicy(CAPACITY, 2048, 10_000, memory_lengths=30, refresh_s=10.0))
    for _ in range(100):
        controller.observe(100)
    assert controller.update(waiting=1, running=1, now_s=0.0) == 600
    for tokens in (50, 150) * 200:
        controller.observe(tokens)
    early = controller.update(waiting=1, running=1, now_s=9.9)
    late = controller.update(waiting=1, running=1, now_s=10.0)
    assert late < early


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


@pytest.mark.parametrize(
    "policy",
    [
        lambda: MemoryPolicy(100, 101, 10),
        lambda: MemoryPolicy(100, 0, 10),
        lambda: MemoryPolicy(100, 10, 0),
        lambda: MemoryPolicy(100, 10, 10, memory_lengths=29),
        lambda: MemoryPolicy(100, 10, 10, refresh_s=-1.0),
        lambda: MemoryPolicy(100, 10, 10, refresh_s=math.nan),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: Callable[[], MemoryPolicy]) -> None:
    with pytest.raises(ValueError, match=r"capacity|out of range"):
        policy()


@pytest.mark.parametrize(
    "edge",
    [
        {"max_request_tokens": 1},
        {"max_request_tokens": 100},
        {"max_batch": 1},
        {"memory_lengths": 30},
        {"refresh_s": 0.0},
        {"refresh_s": 0.5},
        {"overflow": 0.5},
    ],
)
def test_a_policy_may_go_to_the_edge_of_what_makes_sense(edge: dict[str, float]) -> None:
    policy = MemoryPolicy(**{"capacity_tokens": 100, "max_request_tokens": 10, "max_batch": 10} | edge)  # type: ignore[arg-type]
    assert MemoryController(policy).batch_limit == min(policy.max_batch, 100 // policy.max_request_tokens)


@pytest.mark.parametrize(
    ("capacity", "mean", "variance", "batch"),
    [(0.5, 1.0, 0.0, 0.5), (100.0, 0.5, 0.0, 200.0), (100.0, 4.0, 0.0, 25.0)],
)
def test_where_all_requests_are_alike_as_many_fit_as_the_capacity_holds(
    capacity: float, mean: float, variance: float, batch: float
) -> None:
    assert exact_batch(capacity, mean, variance, 0.05) == pytest.approx(batch)


@pytest.mark.parametrize(("mean", "variance"), [(math.inf, 1.0), (1.0, math.inf)])
def test_lengths_without_end_are_refused(mean: float, variance: float) -> None:
    with pytest.raises(ValueError, match="not lengths"):
        exact_batch(1000.0, mean, variance, 0.05)


@pytest.mark.parametrize(("mean", "deviation"), [(10.0, 3.0), (500.0, 400.0), (20.0, 200.0)])
@pytest.mark.parametrize("overflow", [0.5, 0.05, 0.001])
def test_the_batch_fills_the_capacity_but_for_the_spread_it_must_allow_for(
    mean: float, deviation: float, overflow: float
) -> None:
    batch = exact_batch(CAPACITY, mean, deviation**2, overflow)
    theta = NormalDist().inv_cdf(1.0 - overflow)
    assert batch * mean + theta * math.sqrt(batch) * deviation == pytest.approx(CAPACITY)
    buffer = safety_buffer_tokens(CAPACITY, mean, deviation**2, overflow)
    assert buffer == pytest.approx(theta * math.sqrt(batch) * deviation)
    assert linear_batch(CAPACITY, mean, buffer) == math.floor((CAPACITY - buffer) / mean)


def test_a_buffer_larger_than_the_capacity_lets_nobody_in() -> None:
    assert linear_batch(100.0, 10.0, 200.0) == 0
    assert linear_batch(100.0, 10.0, 95.0) == 0


def test_thirty_lengths_are_enough_to_go_by() -> None:
    controller = MemoryController(MemoryPolicy(CAPACITY, 2048, 1000))
    for _ in range(30):
        controller.observe(100)
    assert controller.update(waiting=1, running=1, now_s=0.0) == 600


def test_one_length_is_its_own_mean_and_later_ones_weigh_less_once_enough_were_seen() -> None:
    lengths = LengthMoments(memory=4)
    lengths.observe(100)
    assert (lengths.count, lengths.mean, lengths.variance) == (1, 100.0, 0.0)
    for tokens in (200, 300, 400, 1050):
        lengths.observe(tokens)
    assert lengths.mean == pytest.approx(250 + 800 / 4)
