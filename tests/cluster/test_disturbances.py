"""Break things under load: every record has its one outcome, callers see no error, and replicas are held."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest

from loadtest.stack.kafka import KafkaBroker
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.one_node_cluster import OneNodeCluster
from tests.cluster.release import DEPLOYMENT, NAME, NAMESPACE, KubectlError, Release, get, kube
from tests.cluster.traffic import Traffic, checked
from tests.cluster.values import synthetic
from tests.cluster.watch import has_worked
from tests.support.until import until_beside, wait_until

LEAST, HELD, MOST = 2, 3, 5
RECORDS_PER_S, CALLS_PER_S = 58.0, 10.0  # require HELD model servers, so that a fall to LEAST is seen
STEADY_S = 8.0
DOWN_AT_ONCE = {"stabilizationWindowSeconds": 4, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 2}]}
AWAY_S = 60.0
_METRIC = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/tokenbatch_required_replicas"


@pytest.fixture(scope="module")
def release(new_release: NewRelease) -> Generator[Release]:
    """Model servers that would be taken away in seconds if they were thought to be too many."""
    values = synthetic(
        kafka_on_node.BOOTSTRAP,
        modelServer={
            "autoscaling": {"minReplicas": LEAST, "maxReplicas": MOST, "behavior": {"scaleDown": DOWN_AT_ONCE}},
            "config": {"synthetic": {"per_token_s": 0.002}},
        },
        aggregator={"autoscaling": {"enabled": False}},
        scaler={"config": {"policy": {"max_age_s": 10, "peak_hold_s": 20}, "aggregators": {"interval_s": 1}}},
    )
    with new_release(values).installed() as release:
        wait_until(lambda: len(release.ready("model-server")) >= LEAST, "the least model servers are ready", 120.0)
        yield release


@asynccontextmanager
async def under_load(release: Release, *, calls_may_fail: bool = False) -> AsyncGenerator[Traffic]:
    """Under a steady load, whose every record is held against what must become of it at the end."""
    await until_beside(lambda: len(release.ready("aggregator")) >= 2, "two aggregators are ready", 120.0)
    async with (
        checked(kafka_on_node.BOOTSTRAP, release.address(), calls_may_fail=calls_may_fail) as traffic,
        traffic.flowing(RECORDS_PER_S, CALLS_PER_S),
    ):
        await _steady(release)
        yield traffic
        await asyncio.sleep(5.0)


async def _steady(release: Release) -> None:
    """Wait until as many model servers as the load requires are ready, and stay so."""
    since_s = time.monotonic()
    async with asyncio.timeout(180.0):
        while time.monotonic() < since_s + STEADY_S:
            if _wanted() != HELD or len(release.ready("model-server")) != HELD:
                since_s = time.monotonic()
            await asyncio.sleep(1.0)


async def test_a_rolling_upgrade_and_its_rollback_lose_nothing(release: Release) -> None:
    async with under_load(release):
        change = {
            "aggregator": {"config": {"batching": {"max_held_tokens": 400_000}}},
            "modelServer": {"config": {"synthetic": {"fixed_s": 0.015}}},
        }
        await asyncio.to_thread(release.upgrade, change)
        await asyncio.to_thread(release.rollback)


async def test_pods_that_are_evicted_go_one_at_a_time_and_lose_nothing(release: Release) -> None:
    async with under_load(release):
        for component in ("model-server", "aggregator"):
            before = release.ready(component)
            assert len(before) >= 2
            _evict(before[0])
            with pytest.raises(KubectlError, match="disruption budget"):
                _evict(before[1])
            await replaced(release, component, len(before))


async def replaced(release: Release, component: str, count: int) -> None:
    await until_beside(lambda: len(release.ready(component)) >= count, f"{component} pods are back", 120.0)


def _evict(pod: str) -> None:
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": NAMESPACE},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    kube("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


async def test_pods_that_die_at_random_lose_nothing(release: Release) -> None:
    chosen = random.Random(7)
    async with under_load(release, calls_may_fail=True):
        for component in ("model-server", "aggregator", "scaler", "model-server"):
            pods = release.ready(component)
            victim = chosen.choice(pods)
            kube("--namespace", NAMESPACE, "delete", "pod", victim, "--force", "--grace-period=0")
            await replaced(release, component, len(pods))


async def test_replicas_are_held_while_the_scaler_is_away(release: Release) -> None:
    async with under_load(release):
        kube("--namespace", NAMESPACE, "scale", f"deployment/{NAME}-scaler", "--replicas=0")
        await _held(30.0)
        assert not _answers()
        kube("--namespace", NAMESPACE, "scale", f"deployment/{NAME}-scaler", "--replicas=2")
        await until_beside(_answers, "the scaler answers again", 120.0)
        await _held(10.0)


async def test_replicas_are_held_while_kafka_is_away(release: Release, kafka: KafkaBroker) -> None:
    async with under_load(release, calls_may_fail=True):
        await asyncio.to_thread(kafka.stop)
        await _held(30.0)
        assert not _answers()
        await asyncio.to_thread(kafka.start)
        await until_beside(_answers, "the scaler answers again", 120.0)


async def test_a_minute_without_the_api_server_is_not_noticed(release: Release, lab: OneNodeCluster) -> None:
    async with under_load(release) as traffic:
        before = set(release.ready("model-server"))
        left_s = time.time()
        lab.signal("kube-apiserver", "STOP")  # connections stay open and say nothing: the hardest way to be away
        try:
            await asyncio.sleep(AWAY_S)
        finally:
            lab.signal("kube-apiserver", "CONT")
        assert [at_s for at_s, _ in traffic.calls.answered if at_s > left_s], "nobody called meanwhile"
        await until_beside(_answers, "the scaler answers again", 120.0)
        await _held(30.0)
        assert set(release.ready("model-server")) == before
        assert _restarted(release) == []
        await _new_pods_are_taken_up(release)


def _restarted(release: Release) -> list[str]:
    pods = [pod for component in ("aggregator", "model-server", "scaler") for pod in release.pods(component)]
    return [
        pod["metadata"]["name"]
        for pod in pods
        if any(container["restartCount"] for container in pod["status"]["containerStatuses"])
    ]


async def _new_pods_are_taken_up(release: Release) -> None:
    """See that a model server that starts now gets batches."""
    before = release.ready("model-server")
    kube("--namespace", NAMESPACE, "delete", "pod", before[0])
    await replaced(release, "model-server", len(before))
    new = [pod for pod in release.pods("model-server") if pod["metadata"]["name"] not in before]
    assert len(new) == 1
    await until_beside(lambda: has_worked(new[0]), "the new pod has work", 30.0)


def _wanted() -> int:
    return int(get("deployment", DEPLOYMENT)["spec"]["replicas"])


async def _held(seconds: float) -> None:
    """Look all the while whether there are as many replicas as the load requires, which are more than the least."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        assert _wanted() >= HELD
        await asyncio.sleep(1.0)


def _answers() -> bool:
    try:
        kube("get", "--raw", _METRIC)
    except KubectlError:
        return False
    return True
