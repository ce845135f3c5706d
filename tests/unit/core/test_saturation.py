"""The saturation point: what the rule gives, how well it survives noise, and what a fit refuses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.saturation import Curve, LiveScale, Rule, fit, sweep_tokens

T_MAX = 8192
SEEDS = range(200)
NOISE = 0.10

Time = Callable[[int], float]


def hinged(floor_s: float, fixed_s: float, knee: int) -> Time:
    return lambda tokens: max(floor_s, fixed_s + (floor_s - fixed_s) / knee * tokens)


def straight(fixed_s: float, per_token_s: float) -> Time:
    return lambda tokens: fixed_s + per_token_s * tokens


def measured(time_s: Time, noise: random.Random, runs: int, max_tokens: int = T_MAX) -> list[tuple[int, float]]:
    """A sweep as the model server measures it: the median of several runs at each total."""
    return [
        (tokens, median(time_s(tokens) * (1.0 + NOISE * noise.gauss(0.0, 1.0)) for _ in range(runs)))
        for tokens in sweep_tokens(max_tokens)
    ]


def exact(time_s: Time, max_tokens: int = T_MAX) -> list[tuple[int, float]]:
    return [(tokens, time_s(tokens)) for tokens in sweep_tokens(max_tokens)]


@pytest.mark.parametrize("knee", [100, 600, 3000])
@pytest.mark.parametrize("fixed_share", [0.0, 0.25, 0.5])
def test_without_noise_the_hinge_is_found_to_the_token(knee: int, fixed_share: float) -> None:
    curve = fit(exact(hinged(0.020, 0.020 * fixed_share, knee)), T_MAX)
    assert (curve.saturation_point, curve.rule) == (knee, Rule.HINGE)
    assert curve.floor_s == pytest.approx(0.020)
    assert curve.fixed_s == pytest.approx(0.020 * fixed_share, abs=1e-9)


def test_a_floor_that_ends_long_before_throughput_does_is_passed_by() -> None:
    """As measured once on a CPU: 16 tokens took as long as one, and steps of 300 did three times as many a second."""
    curve = fit(exact(hinged(0.0122, 0.00866, 16), 1024), 1024)
    assert curve.rule is Rule.THROUGHPUT
    assert curve.floor_s == pytest.approx(0.0122)
    wanted = 0.9 * curve.throughput(1024)
    assert curve.throughput(curve.saturation_point) >= wanted > curve.throughput(curve.saturation_point - 1)


def test_without_a_floor_the_point_is_the_first_with_nine_tenths_of_the_throughput_at_t_max() -> None:
    curve = fit(exact(straight(0.0028, 31e-6)), T_MAX)
    wanted = 0.9 * curve.throughput(T_MAX)
    assert curve.rule is Rule.THROUGHPUT
    assert curve.throughput(curve.saturation_point) >= wanted > curve.throughput(curve.saturation_point - 1)


def test_a_floor_too_low_to_be_one_leaves_it_to_the_throughput_rule() -> None:
    curve = fit(exact(hinged(0.0044, 0.0040, 60)), T_MAX)
    wanted = 0.9 * curve.throughput(T_MAX)
    assert curve.rule is Rule.THROUGHPUT
    assert curve.floor_s == pytest.approx(0.0044)
    assert curve.throughput(curve.saturation_point) >= wanted > curve.throughput(curve.saturation_point - 1)


def test_without_a_fixed_part_every_step_size_is_as_good() -> None:
    curve = fit(exact(straight(0.0, 31e-6)), T_MAX)
    assert (curve.saturation_point, curve.rule) == (1, Rule.THROUGHPUT)


@pytest.mark.parametrize("time_s", [straight(0.020, 0.0), straight(0.020, 1e-9), lambda tokens: 0.020 - 1e-6 * tokens])
def test_a_curve_flat_to_t_max_gives_t_max_and_says_so(time_s: Time) -> None:
    curve = fit(exact(time_s), T_MAX)
    assert (curve.saturation_point, curve.rule) == (T_MAX, Rule.FLAT)


def test_a_hinge_beyond_t_max_is_flat() -> None:
    curve = fit(exact(hinged(0.020, 0.0, 6000)), 4096)
    assert (curve.saturation_point, curve.rule, curve.max_tokens) == (4096, Rule.FLAT, 4096)


def test_the_throughput_rule_depends_on_how_far_one_sweeps_and_so_publishes_it() -> None:
    """Why T_max stands in the profile: the same curve has another point for every sweep."""
    curves = [fit(exact(straight(0.004, 73e-6), t_max), t_max) for t_max in (2048, 4096, 16384)]
    assert len({curve.saturation_point for curve in curves}) == 3
    assert [curve.max_tokens for curve in curves] == [2048, 4096, 16384]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("time_s", "runs"),
    [
        (hinged(0.020, 0.0, 600), 10),
        (hinged(0.020, 0.003, 600), 10),
        (hinged(0.020, 0.010, 600), 25),  # the two lines cross at a shallow angle: more runs for the same certainty
        (hinged(0.008, 0.0, 100), 10),
        (straight(0.0028, 31e-6), 10),
        (straight(0.0040, 73e-6), 10),
        (straight(0.0200, 0.0), 10),
    ],
    ids=["a100", "a100-with-overhead", "a100-half-overhead", "small-gpu", "cpu", "slow-cpu", "flat"],
)
def test_under_noise_the_point_lies_within_a_tenth_of_the_exact_one(time_s: Time, runs: int) -> None:
    wanted = fit(exact(time_s), T_MAX)
    found = [fit(measured(time_s, random.Random(seed), runs), T_MAX) for seed in SEEDS]
    near = [abs(curve.saturation_point / wanted.saturation_point - 1.0) <= 0.10 for curve in found]
    assert sum(near) >= 0.95 * len(SEEDS)


def test_one_stray_point_in_a_sweep_hardly_moves_the_hinge() -> None:
    points = exact(hinged(0.020, 0.003, 600))
    for index in range(len(points)):
        spoiled = [(tokens, time_s * (5.0 if i == index else 1.0)) for i, (tokens, time_s) in enumerate(points)]
        assert fit(spoiled, T_MAX).saturation_point == pytest.approx(600, rel=0.05)


def test_totals_may_repeat_and_come_in_any_order() -> None:
    points = exact(hinged(0.020, 0.003, 600))
    shuffled = random.Random(1).sample(points * 3, 3 * len(points))
    assert fit(shuffled, T_MAX).saturation_point == 600


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(8, 0.1), (16, 0.1), (32, 0.1), (32, 0.1)],
        [(0, 0.1), (8, 0.1), (16, 0.1), (32, 0.1)],
        [(4, 0.0), (8, 0.1), (16, 0.1), (32, 0.1)],
        [(4, math.nan), (8, 0.1), (16, 0.1), (32, 0.1)],
        [(4, math.inf), (8, 0.1), (16, 0.1), (32, 0.1)],
    ],
)
def test_what_is_no_measurement_is_refused(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match=r"measurement|different token totals"):
        fit(points, T_MAX)


def test_a_sweep_needs_an_end() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        fit(exact(straight(0.004, 73e-6)), 0)


@pytest.mark.slow
@given(
    times=st.lists(st.floats(1e-4, 10.0), min_size=23, max_size=23),
    max_tokens=st.integers(1, 2 * T_MAX),
)
def test_whatever_was_measured_the_point_lies_between_one_and_t_max(times: list[float], max_tokens: int) -> None:
    curve = fit(list(zip(sweep_tokens(T_MAX), times, strict=True)), max_tokens)
    assert 1 <= curve.saturation_point <= max_tokens
    assert curve.floor_s >= 0.0
    assert curve.fixed_s >= 0.0
    assert curve.per_token_s >= 0.0
    assert curve.time_s(1) > 0.0


def test_a_sweep_measures_powers_of_two_and_their_midpoints_up_to_t_max() -> None:
    assert sweep_tokens(100) == (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100)
    assert sweep_tokens(64, min_tokens=16) == (16, 24, 32, 48, 64)


def test_a_sweep_too_short_to_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="only 3 totals"):
        sweep_tokens(8)


def test_time_and_throughput_follow_the_curve() -> None:
    curve = Curve(0.020, 0.005, 25e-6, 600, Rule.HINGE, T_MAX)
    assert curve.time_s(0) == curve.time_s(600) == pytest.approx(0.020)
    assert curve.time_s(1000) == pytest.approx(0.030)
    assert curve.throughput(1000) == pytest.approx(1000 / 0.030)
    assert curve.throughput(0) == 0.0


def test_a_lane_starts_at_its_curve() -> None:
    assert LiveScale().value == 1.0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_lane_learns_its_speed_within_thirty_noisy_steps(factor: float) -> None:
    for seed in SEEDS:
        noise = random.Random(seed)
        scale = LiveScale()
        for _ in range(200):
            scale.observe(0.010 * math.exp(NOISE * noise.gauss(0.0, 1.0)), 0.010)
        for _ in range(30):
            scale.observe(factor * 0.010 * math.exp(NOISE * noise.gauss(0.0, 1.0)), 0.010)
        assert scale.value == pytest.approx(factor, rel=0.15)


def test_one_stray_step_moves_a_lane_by_less_than_a_tenth() -> None:
    scale = LiveScale()
    for _ in range(50):
        scale.observe(0.010, 0.010)
    scale.observe(60.0, 0.010)
    assert scale.value < 1.1


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_teaches_a_lane_nothing(time_s: float) -> None:
    scale = LiveScale()
    scale.observe(time_s, 0.010)
    scale.observe(0.010, time_s)
    assert scale.value == 1.0
