"""The chart's own `behavior`: two pods come a minute, or half as many again; one goes every two minutes, after five."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Sequence
from itertools import pairwise

import pytest

from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import Release
from tests.cluster.traffic import checked
from tests.cluster.values import synthetic
from tests.cluster.watch import Sample, Watch
from tests.support.until import until_beside

QUIET_PER_S, RECORDS_PER_S, CALLS_PER_S = 10.0, 500.0, 5.0
LOAD_S = 150.0
UP_S, STABLE_S, DOWN_S = 60.0, 300.0, 120.0
LOOK_S = 5.0  # between what the autoscaler does and what is seen of it


@pytest.fixture(scope="module")
def release(new_release: NewRelease) -> Generator[Release]:
    """With the chart's scaling as it is: bounds, behaviour and policy."""
    config = {"synthetic": {"fixed_s": 0.04, "per_token_s": 0.0004}, "engine": {"step_tokens": 512}}
    with new_release(synthetic(kafka_on_node.BOOTSTRAP, modelServer={"config": config})).installed() as release:
        yield release


async def test_pods_come_and_go_as_the_charts_behavior_says_and_nobody_is_lost(release: Release) -> None:
    await until_beside(lambda: len(release.ready("aggregator")) >= 2, "the aggregators are ready", 120.0)
    async with (
        checked(kafka_on_node.BOOTSTRAP, release.address()) as traffic,
        Watch(traffic).running() as watch,
        traffic.flowing(QUIET_PER_S, CALLS_PER_S),
    ):
        await watch.until(lambda sample: sample.required is not None and sample.ready == 1, "one is enough", 180.0)
        async with traffic.flowing(RECORDS_PER_S, 0):
            await asyncio.sleep(LOAD_S)
        most = max(sample.desired for sample in watch.samples)
        await watch.until(lambda sample: sample.desired <= most - 2, "two have gone", STABLE_S + 3 * DOWN_S)
    most = max(sample.desired for sample in watch.samples)
    assert most > 3, "more than one step up"
    assert all(_added_at_most_what_a_minute_may(watch.samples, sample) for sample in watch.samples)
    steps = [(late.at_s, late.desired - early.desired) for early, late in pairwise(watch.samples)]
    downs = [at_s for at_s, change in steps if change < 0]
    assert {change for _, change in steps if change < 0} == {-1}
    needed = [each.at_s for each in watch.samples if each.at_s < downs[0] and (each.required or 0.0) > each.desired - 1]
    assert downs[0] > needed[-1] + STABLE_S - LOOK_S
    assert all(late - early > DOWN_S - LOOK_S for early, late in pairwise(downs))


def _added_at_most_what_a_minute_may(samples: Sequence[Sample], now: Sample) -> bool:
    before = [each.desired for each in samples if now.at_s - (UP_S - LOOK_S) <= each.at_s <= now.at_s]
    return now.desired <= max(before[0] + 2, math.ceil(1.5 * before[0]))
