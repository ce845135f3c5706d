"""The real HorizontalPodAutoscaler follows a step of load up and down, and nobody is lost on the way."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.chart.rendering import ROOT
from tests.cluster import kafka_on_node, plot
from tests.cluster.conftest import NewRelease
from tests.cluster.release import Release
from tests.cluster.step import Step
from tests.cluster.traffic import Calls, Traffic, checked
from tests.cluster.values import synthetic
from tests.cluster.watch import Sample, Watch
from tests.faults.verdict import Verdict
from tests.support.until import wait_until

SYNC_S = 2.0  # how often the lab's autoscaler looks
DRAIN_S = 10.0
TARGET_S = 0.16
LOOSE_S, TIGHT_S = 0.4, 0.08
"""Steps of 0.2 s would hold more tokens than the throughput gains from; one of 0.04 s holds none."""
MOST = 6
RECORDS_PER_S, CALLS_PER_S = 350.0, 10.0
QUIET_PER_S = 20.0
STEP_S = 45.0
SETTLED_S = 180.0  # by then, on whatever machine
RISEN = 2.0  # times as much
RUN = ROOT / ".run/kube/scaling.json"
BEHAVIOR = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": MOST - 1, "periodSeconds": 10}],  # all that are needed at once
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 15,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 8}],
    },
}


@pytest.fixture(scope="module")
def release(new_release: NewRelease) -> Generator[Release]:
    """With a policy and a behaviour as quick as the lab; production's stand in values.yaml."""
    values = synthetic(
        kafka_on_node.BOOTSTRAP,
        modelServer={
            "autoscaling": {"minReplicas": 1, "maxReplicas": MOST, "behavior": BEHAVIOR},
            "config": {"synthetic": {"fixed_s": 0.04, "per_token_s": 0.0004}, "engine": {"step_tokens": 512}},
        },
        aggregator={
            "autoscaling": {"enabled": False},
            "config": {"sla": {"latency_s": TARGET_S}},
        },
        scaler={
            "config": {
                "policy": {"drain_s": DRAIN_S, "peak_hold_s": 10, "arrival_window_s": SYNC_S},
                "aggregators": {"interval_s": 1},
            }
        },
    )
    with new_release(values).installed() as release:
        yield release


@dataclass(frozen=True, slots=True)
class Followed:
    """What was seen of a step of load; `risen_at_s`: when what is required had risen (wall clock)."""

    step: Step
    risen_at_s: float
    watch: Watch
    traffic: Traffic
    verdict: Verdict

    @property
    def desired(self) -> list[int]:
        """The model servers asked for since the step, look by look."""
        return [sample.desired for sample in self.watch.samples if sample.at_s >= self.step.at_s]


@pytest.fixture(scope="module")
def followed(release: Release) -> Followed:
    """One step of load, up and down again, with what came of all records and calls."""
    return asyncio.run(_step_of_load(release))


async def _step_of_load(release: Release) -> Followed:
    traffic = Traffic(kafka_on_node.BOOTSTRAP, Calls(_address(release)))
    await traffic.open()
    watch = Watch(traffic)
    async with watch.running():
        async with traffic.flowing(QUIET_PER_S, CALLS_PER_S):
            await watch.until(lambda s: s.required is not None and s.ready == 1, "one pod is enough", SETTLED_S)
            await asyncio.sleep(10.0)
            quiet = watch.samples[-1].required or 0.0
            step = Step(time.time(), RECORDS_PER_S, DRAIN_S, SYNC_S)
            async with traffic.flowing(RECORDS_PER_S, 0):
                risen = await watch.until(
                    lambda s: (s.required or 0.0) > RISEN * quiet, "what is required rises", SETTLED_S
                )
                await asyncio.sleep(STEP_S)
            await watch.until(lambda s: s.lag_records < RECORDS_PER_S, "the lag is empty", SETTLED_S)
            most = max(sample.required or 0.0 for sample in watch.samples)
            await watch.until(lambda s: _has_fallen(s, most), "no more pods are left than are required", SETTLED_S)
            await asyncio.sleep(5.0)
        verdict = await traffic.verdict()
    plot.keep(RUN, step, watch.samples, traffic.calls.answered)
    return Followed(step, risen.at_s, watch, traffic, verdict)


def _has_fallen(sample: Sample, most: float) -> bool:
    """Beside other work on the machine a pod gives less, and one may not be enough for the quiet load."""
    required = sample.required or 0.0
    return required < most / RISEN and sample.ready == sample.desired <= max(1, math.ceil(required))


@pytest.mark.short
def test_a_step_of_load_is_followed_up_and_down_and_nobody_is_lost(followed: Followed) -> None:
    assert followed.verdict.problems == ()
    assert followed.traffic.calls.errors == []
    required = max(sample.required or 0.0 for sample in followed.watch.samples)
    assert 2 <= max(followed.desired) <= math.ceil(required)


def test_a_step_of_load_is_followed_in_time(followed: Followed) -> None:
    """Bounds by the clock hold where the node's two cores are its own: no part of the short run."""
    step, watch = followed.step, followed.watch
    assert followed.risen_at_s - step.at_s < 2 * SYNC_S
    assert step.emptied_s(watch.samples) < step.bound_s(watch.samples)
    new = {name: watch.first_batch_s[name] - at_s for name, at_s in watch.ready_s.items() if at_s > step.at_s}
    assert new, "no new pod was seen to be ready"
    assert max(new.values()) < 5.0 + 1.0 + SYNC_S / 2, new  # conditions are in whole seconds; a look takes its time


def test_replicas_go_up_without_a_step_back_and_then_down_one_at_a_time(followed: Followed) -> None:
    """The way down may begin under the load: draining what waits takes more pods than what arrives."""
    desired = followed.desired
    top = desired.index(max(desired))
    assert desired[:top] == sorted(desired[:top])
    assert all(0 <= early - late <= 1 for early, late in pairwise(desired[top:]))
    assert (desired[-1], followed.watch.samples[-1].ready) == (1, 1)


async def test_a_tighter_target_shrinks_the_budget_and_raises_the_replicas(release: Release) -> None:
    await asyncio.to_thread(release.upgrade, {"aggregator": {"config": {"sla": {"latency_s": LOOSE_S}}}})
    async with (
        checked(kafka_on_node.BOOTSTRAP, _address(release)) as traffic,
        Watch(traffic).running() as watch,
        traffic.flowing(RECORDS_PER_S / 2, CALLS_PER_S),
    ):
        await asyncio.sleep(30.0)
        loose = _mean_of(watch.samples[-20:])
        await asyncio.to_thread(release.upgrade, {"aggregator": {"config": {"sla": {"latency_s": TIGHT_S}}}})
        await asyncio.sleep(45.0)
        tight = _mean_of(watch.samples[-20:])
    assert tight[0] < 0.85 * loose[0], "the token budget did not shrink"  # replicas with little to do keep theirs
    assert tight[1] > loose[1], "no more replicas were required"


def _mean_of(samples: Sequence[Sample]) -> tuple[float, float]:
    """Token budget, and required replicas."""
    required = [sample.required for sample in samples if sample.required is not None]
    return sum(sample.token_budget for sample in samples) / len(samples), sum(required) / len(required)


def _address(release: Release) -> str:
    wait_until(lambda: len(release.ready("aggregator")) >= 2, "both aggregators are ready")
    return release.address()
