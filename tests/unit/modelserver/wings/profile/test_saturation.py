"""The saturation point: what the rule gives, how well it survives noise, and what a fit refuses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.wings.profile.saturation import Curve, Rule, fit, fit_captured, sweep_tokens

T_MAX = 8192
SEEDS = range(20)
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


@pytest.mark.parametrize(
    ("time_s", "floor_s", "max_tokens"),
    [
        (hinged(0.0122, 0.00866, 16), 0.0122, 1024),  # as measured once on a CPU: the floor ends long before the gain
        (straight(0.0028, 31e-6), 0.0028, T_MAX),
        (hinged(0.0044, 0.0040, 60), 0.0044, T_MAX),  # hardly a floor
    ],
)
def test_without_a_floor_the_point_is_the_first_with_nine_tenths_at_t_max(
    time_s: Time, floor_s: float, max_tokens: int
) -> None:
    curve = fit(exact(time_s, max_tokens), max_tokens)
    assert curve.rule is Rule.THROUGHPUT
    assert curve.floor_s == pytest.approx(floor_s)
    wanted = 0.9 * curve.throughput(max_tokens)
    assert curve.throughput(curve.saturation_point) >= wanted > curve.throughput(curve.saturation_point - 1)


def test_without_a_fixed_part_every_step_size_is_as_good() -> None:
    curve = fit(exact(straight(0.0, 31e-6)), T_MAX)
    assert (curve.saturation_point, curve.rule) == (1, Rule.THROUGHPUT)


@pytest.mark.parametrize(
    ("time_s", "max_tokens"),
    [
        (straight(0.020, 0.0), T_MAX),
        (straight(0.020, 1e-9), T_MAX),
        (lambda tokens: 0.020 - 1e-6 * tokens, T_MAX),
        (hinged(0.020, 0.0, 6000), 4096),
    ],
)
def test_a_curve_flat_to_t_max_gives_t_max_and_says_so(time_s: Time, max_tokens: int) -> None:
    curve = fit(exact(time_s), max_tokens)
    assert (curve.saturation_point, curve.rule, curve.max_tokens) == (max_tokens, Rule.FLAT, max_tokens)


def test_the_throughput_rule_depends_on_the_sweep_and_so_publishes_it() -> None:
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
    with pytest.raises(ValueError, match="only 3 totals"):
        sweep_tokens(8)
    with pytest.raises(ValueError, match="max_tokens"):
        fit(exact(straight(0.004, 73e-6)), 0)


def test_time_and_throughput_follow_the_curve() -> None:
    curve = Curve(0.020, 0.005, 25e-6, 600, Rule.HINGE, T_MAX)
    assert curve.time_s(0) == curve.time_s(600) == pytest.approx(0.020)
    assert curve.time_s(1000) == pytest.approx(0.030)
    assert curve.throughput(1000) == pytest.approx(1000 / 0.030)
    assert curve.throughput(0) == Curve(0.0, 0.0, 25e-6, 1, Rule.THROUGHPUT, T_MAX).throughput(0) == 0.0


def huber_loss(points: list[tuple[int, float]], curve: Curve, limit: float) -> float:
    """Relative errors squared, and those beyond the limit as if they lay on a line."""
    errors = (abs(time_s / curve.time_s(tokens) - 1.0) for tokens, time_s in points)
    return sum(error**2 if error <= limit else 2 * limit * error - limit**2 for error in errors)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "time_s", [hinged(0.020, 0.003, 600), hinged(0.008, 0.0, 100), straight(0.004, 73e-6), straight(0.02, 0.0)]
)
def test_no_curve_nearby_fits_noisy_times_better(time_s: Time, seed: int) -> None:
    points = measured(time_s, random.Random(seed), runs=3)
    curve = fit(points, T_MAX)
    errors = sorted(abs(seconds / curve.time_s(tokens) - 1.0) for tokens, seconds in points)
    limit = 2.0 * 1.4826 * median(errors)  # twice the standard deviation, robustly told
    least = huber_loss(points, curve, limit)
    floors = (curve.floor_s,) if curve.floor_s == curve.fixed_s else (0.99 * curve.floor_s, 1.01 * curve.floor_s)
    for floor_s in floors:
        for fixed_s in (0.97 * curve.fixed_s, 1.03 * curve.fixed_s):
            for per_token_s in (0.99 * curve.per_token_s, 1.01 * curve.per_token_s):
                other = replace(curve, floor_s=max(floor_s, fixed_s), fixed_s=fixed_s, per_token_s=per_token_s)
                assert huber_loss(points, other, limit) > 0.995 * least


@pytest.mark.parametrize("over_fixed", [1.19, 1.21])
def test_a_floor_counts_only_more_than_a_fifth_above_the_fixed_part(over_fixed: float) -> None:
    curve = fit(exact(hinged(0.004 * over_fixed, 0.004, 5000)), T_MAX)
    assert curve.rule is (Rule.HINGE if over_fixed > 1.2 else Rule.THROUGHPUT)


def test_a_floor_must_end_where_two_fifths_of_the_throughput_are_reached() -> None:
    for knee, rule in ((2200, Rule.THROUGHPUT), (2300, Rule.HINGE)):
        curve = fit(exact(hinged(0.004, 0.0033, knee)), T_MAX)
        reached = knee / 0.004 / curve.throughput(T_MAX)
        assert (reached > 0.4) == (rule is Rule.HINGE)
        assert curve.rule is rule


@pytest.mark.parametrize(("rise", "rule"), [(1.04, Rule.FLAT), (1.06, Rule.THROUGHPUT)])
def test_a_curve_is_flat_that_rises_by_less_than_a_twentieth(rise: float, rule: Rule) -> None:
    assert fit(exact(straight(0.02, 0.02 * (rise - 1.0) / T_MAX)), T_MAX).rule is rule


def test_four_totals_are_enough_and_one_token_is_a_total() -> None:
    curve = fit([(1, 0.0101), (2, 0.0102), (4, 0.0104), (8, 0.0108)], 8)
    assert curve.fixed_s == pytest.approx(0.010)
    assert curve.per_token_s == pytest.approx(1e-4)
    assert sweep_tokens(12) == (4, 6, 8, 12)
    assert fit(exact(straight(0.0028, 31e-6)), 1).saturation_point == 1


def hinge_loss(points: list[tuple[int, float]], weights: list[float], knee: int) -> float:
    """The least weighted sum of squares of a floor up to `knee` and a slope that begins there."""
    scale = np.sqrt(np.array(weights))
    design = np.array([[1.0, max(0, tokens - knee)] for tokens, _ in points]) * scale[:, None]
    times = np.array([time_s for _, time_s in points]) * scale
    (floor_s, per_token_s), *_ = np.linalg.lstsq(design, times, rcond=None)
    if not 0.0 <= per_token_s <= floor_s / knee:
        return math.inf
    return float(((design @ (floor_s, per_token_s) - times) ** 2).sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("time_s", [hinged(0.020, 0.003, 600), hinged(0.008, 0.0, 100), hinged(0.02, 0.0, 2600)])
def test_no_hinge_elsewhere_fits_noisy_times_better(time_s: Time, seed: int) -> None:
    points = measured(time_s, random.Random(seed), runs=2)
    curve = fit(points, T_MAX)
    errors = [abs(seconds / curve.time_s(tokens) - 1.0) for tokens, seconds in points]
    limit = 2.0 * 1.4826 * median(errors)
    weights = [
        limit / max(limit, error) / curve.time_s(tokens) ** 2 for (tokens, _), error in zip(points, errors, strict=True)
    ]
    ours = sum(
        weight * (curve.time_s(tokens) - seconds) ** 2
        for weight, (tokens, seconds) in zip(weights, points, strict=True)
    )
    knees = {*range(10, 100, 7), *range(100, 8000, 53), *(tokens for tokens, _ in points[:-2])}
    assert ours <= 1.02 * min(hinge_loss(points, weights, knee) for knee in knees)


def test_noise_alone_is_hardly_ever_taken_for_a_hinge_or_a_slope() -> None:
    seeds = range(40)
    lines = [fit(measured(straight(0.004, 73e-6), random.Random(seed), runs=10), T_MAX) for seed in seeds]
    constants = [fit(measured(straight(0.02, 0.0), random.Random(seed), runs=10), T_MAX) for seed in seeds]
    assert sum(curve.floor_s == curve.fixed_s for curve in lines) >= 38
    assert sum(curve.per_token_s == 0.0 for curve in constants) >= 38


def test_a_hinge_between_the_last_two_totals_is_put_at_the_first_of_them() -> None:
    """One total tells nothing of where a slope begins."""
    points = [(tokens, max(0.010, 0.002 + 1e-5 * tokens)) for tokens in sweep_tokens(1024)]  # from 800 on
    curve = fit(points, 1024)
    assert (curve.saturation_point, curve.rule) == (768, Rule.HINGE)
    assert curve.floor_s == pytest.approx(0.010)
    assert curve.time_s(1024) == pytest.approx(0.01224)


def test_a_hinge_may_lie_at_the_first_token_with_a_slope_from_there_on() -> None:
    totals = (1, 2, 3, 4, 6, 8)
    curve = fit([(tokens, 0.01 * max(1.2, tokens)) for tokens in totals], 8)
    assert (curve.saturation_point, curve.rule) == (1, Rule.HINGE)
    assert fit([(tokens, 0.01 * tokens) for tokens in totals], 8).saturation_point == 1
    assert fit([(tokens, 0.01 + 0.0002 * (tokens - 1)) for tokens in totals[:4]], 4).rule is Rule.THROUGHPUT


def test_times_that_grow_faster_than_their_tokens_leave_no_negative_part() -> None:
    points = [(tokens, 0.01 * max(1.0, tokens / 128) ** 3) for tokens in sweep_tokens(1024)]
    curve = fit(points, 1024)
    assert curve.fixed_s >= 0.0
    assert curve.per_token_s >= 0.0
    assert curve.time_s(1) > 0.0


@pytest.mark.parametrize(
    "times_ms",
    [
        (10.0, 10.0, 10.0, 10.0, 10.4, 14.2, 24.5, 45.0),
        (10.0, 10.0, 10.0, 10.0, 20.4, 24.2, 34.5, 55.0),
        (16.3, 16.63, 16.65, 15.92, 16.82, 16.94, 18.62, 21.59),
        (17.08, 15.28, 17.22, 14.75, 15.41, 22.91, 37.32, 77.5),
    ],
)
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_a_fit_does_not_depend_on_the_unit_of_time(unit: float, times_ms: tuple[float, ...]) -> None:
    totals = (8, 64, 256, 512, 640, 1024, 2048, 4096)
    milliseconds, other = (
        fit([(tokens, scale * time_ms) for tokens, time_ms in zip(totals, times_ms, strict=True)], 8192)
        for scale in (1.0, unit)
    )
    assert other.saturation_point == milliseconds.saturation_point
    assert (other.floor_s, other.fixed_s, other.per_token_s) == pytest.approx(
        (unit * milliseconds.floor_s, unit * milliseconds.fixed_s, unit * milliseconds.per_token_s), rel=1e-6
    )


def test_a_fit_begins_with_errors_that_count_by_their_share_of_the_time() -> None:
    """Noise of a fifth, and a rise at the last point alone: weighed otherwise at first, it ends at no rise at all."""
    curve = fit([(16, 8.6), (32, 9.5), (128, 6.8), (512, 8.3), (2048, 17.2)], 2048)
    assert (curve.saturation_point, curve.rule) == (512, Rule.HINGE)


SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
TOTALS = (*SIZES, 4097, 6144, 8192)


def eager_above(tokens: int) -> float:
    """As is estimated of MiniLM on an H200 with graphs up to 4,096 tokens: above, launches alone take 2 ms."""
    return max(0.002 if tokens > SIZES[-1] else 0.0, 0.00033 + 0.309e-6 * tokens)


def test_the_jump_above_the_largest_graph_is_its_own_part_of_the_curve() -> None:
    curve = fit_captured([(tokens, eager_above(tokens)) for tokens in TOTALS], T_MAX, SIZES)
    assert curve.eager_s == 0.002
    assert (curve.fixed_s, curve.per_token_s) == pytest.approx((0.00033, 0.309e-6), rel=1e-6)
    assert (curve.rule, curve.saturation_point) == (Rule.THROUGHPUT, 4096), "4,173 by the rule, where a step takes 2 ms"
    assert curve.time_s(65) == curve.time_s(128) < curve.time_s(129)
    assert curve.time_s(4096) < 0.0016
    assert curve.time_s(4097) == 0.002
    assert curve.time_s(8192) == pytest.approx(eager_above(8192))


def test_without_a_jump_steps_without_graphs_are_part_of_the_fit() -> None:
    points = exact(straight(0.001, 1e-6))
    for sizes in ((), SIZES, (64, 128), (*SIZES, 8192)):
        assert fit_captured(points, T_MAX, sizes) == replace(fit(points, T_MAX), capture_sizes=sizes)
