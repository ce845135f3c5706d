"""What a replica learns of its server's speed from steps, against what its curve says."""

from __future__ import annotations

import math
import random

import pytest

from aggregator.scheduler.replica import LiveScale

SEEDS = range(50)
NOISE = 0.10


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_speed_is_learnt_within_thirty_noisy_steps(factor: float) -> None:
    for seed in SEEDS:
        noise = random.Random(seed)
        scale = LiveScale()
        for _ in range(200):
            scale.observe(0.010 * math.exp(NOISE * noise.gauss(0.0, 1.0)), 0.010)
        for _ in range(30):
            scale.observe(factor * 0.010 * math.exp(NOISE * noise.gauss(0.0, 1.0)), 0.010)
        assert scale.value == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize("clip", [0.7, 0.1])
def test_a_stray_step_counts_for_no_more_than_the_clip_and_less_and_less(clip: float) -> None:
    scale = LiveScale(weight=0.1, clip=clip)
    scale.observe(100.0, 1.0)
    assert scale.value == pytest.approx(math.exp(clip / 2))
    for _ in range(30):
        scale.observe(scale.value, 1.0)
    before = scale.value
    scale.observe(1e-6, 1.0)
    assert scale.value == pytest.approx(before * math.exp(-0.1 * clip))


def test_the_first_steps_weigh_as_in_a_plain_mean_that_begins_with_one_vote() -> None:
    scale = LiveScale(weight=0.1, clip=9.0)
    for count in range(1, 9):
        scale.observe(2.0, 1.0)
        assert scale.value == pytest.approx(2.0 ** (count / (count + 1)))


@pytest.mark.parametrize("times", [(0.0, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.inf), (math.nan, 1.0)])
def test_neither_a_measured_nor_a_fitted_time_that_is_none_teaches_anything(times: tuple[float, float]) -> None:
    scale = LiveScale()
    scale.observe(*times)
    assert scale.value == 1.0
    scale.observe(2.0, 1.0)
    assert scale.value == pytest.approx(math.sqrt(2.0))
