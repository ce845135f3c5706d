"""KEDA mode, by KEDA's operator: model servers go from none to several and back, and stay while nothing is known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from datetime import datetime
from typing import Any

import grpc.aio
import pytest

from loadtest.stack.kafka import KafkaBroker
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.cluster import kafka_on_node
from tests.cluster import keda as keda_on_cluster
from tests.cluster.conftest import NewRelease
from tests.cluster.one_node_cluster import Progress
from tests.cluster.release import DEPLOYMENT, NAME, NAMESPACE, Object, Release, condition, get, kube
from tests.cluster.traffic import checked
from tests.cluster.values import synthetic
from tests.support.until import until_beside, wait_until

RECORDS_PER_S = 250.0
COOLDOWN_S = 20
AWAY_S = 30.0
DOWN_AT_ONCE = {"stabilizationWindowSeconds": 4, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 2}]}


@pytest.fixture(scope="module")
def release(new_release: NewRelease, keda: None) -> Generator[Release]:
    """With none at the least, and as quick as KEDA can be told to be."""
    assert keda is None
    autoscaling: dict[str, Any] = {
        "minReplicas": 0,
        "maxReplicas": 4,
        "behavior": {"scaleDown": DOWN_AT_ONCE},
        "keda": {"cooldownPeriod": COOLDOWN_S, "pollingInterval": 2},
    }
    values = synthetic(
        kafka_on_node.BOOTSTRAP,
        autoscaling={"mode": "keda"},
        networkPolicy={"enabled": False},
        modelServer={
            "autoscaling": autoscaling,
            "config": {"synthetic": {"fixed_s": 0.04, "per_token_s": 0.0008}},
        },
        aggregator={"autoscaling": {"enabled": False}},
        scaler={
            "config": {"policy": {"drain_s": 10, "max_age_s": 10, "peak_hold_s": 5}, "aggregators": {"interval_s": 1}}
        },
    )
    with new_release(values).installed() as release:
        yield release


def test_a_new_scaled_object_leaves_an_idle_pod_its_first_pause(release: Release) -> None:
    assert release.pods("model-server")
    made_s = _seconds(_scaled_object()["metadata"]["creationTimestamp"])
    assert _scaled_object()["spec"]["initialCooldownPeriod"] == COOLDOWN_S
    while time.time() < made_s + COOLDOWN_S - 1.0:
        assert _replicas() == 1
        time.sleep(0.5)
    wait_until(lambda: _replicas() == 0, "none is left", 60.0)
    assert condition(_scaled_object(), "Ready") == "True"


async def test_a_call_wakes_a_model_that_is_scaled_to_none_and_is_answered(
    release: Release, on_progress: Progress
) -> None:
    await _asleep(release)
    assert len(release.ready("aggregator")) == len(release.pods("aggregator")) > 0
    address = release.address()
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        called_s = time.time()
        request = pb.EmbedRequest(inputs=[pb.Input(text="Who wakes a model?")])
        answer = await pb_grpc.EmbeddingsStub(channel).Embed(request, timeout=60.0)
        answered_s = time.time()
    assert answer.embeddings[0].embedding
    (pod,) = release.pods("model-server")
    (ready,) = (each for each in pod["status"]["conditions"] if each["type"] == "Ready")
    started_s = _seconds(ready["lastTransitionTime"]) - _seconds(pod["metadata"]["creationTimestamp"])
    on_progress(f"answered {answered_s - called_s:.1f} s after the call, of which the pod's start took {started_s:.0f}")
    assert answered_s - called_s < started_s + 2.0 + 2.0  # the timestamps are in whole seconds
    assert "from 0 to 1" in _events("KEDAScaleTargetActivated")


async def test_from_none_to_several_and_back_to_none(release: Release) -> None:
    await _asleep(release)
    async with checked(kafka_on_node.BOOTSTRAP) as traffic:
        async with traffic.flowing(RECORDS_PER_S, 0):
            await until_beside(lambda: len(release.ready("model-server")) > 1, "several are ready", 120.0)
            await asyncio.sleep(10.0)
        await traffic.drained()
        await _asleep(release)
    assert "to 0" in _events("KEDAScaleTargetDeactivated")


async def test_replicas_are_held_while_the_scaler_knows_nothing_or_is_away(
    release: Release, kafka: KafkaBroker
) -> None:
    async with checked(kafka_on_node.BOOTSTRAP) as traffic, traffic.flowing(RECORDS_PER_S, 0):
        held = await _steady(release)
        await asyncio.to_thread(kafka.stop)  # the scaler answers with errors
        await until_beside(lambda: _falls_back() == "True", "KEDA falls back", 60.0)
        await _held(held, AWAY_S)
        await asyncio.to_thread(kafka.start)
        await until_beside(lambda: _falls_back() == "False", "KEDA hears figures again", 60.0)
        held = await _steady(release)
        kube("--namespace", NAMESPACE, "scale", f"deployment/{NAME}-scaler", "--replicas=0")  # it does not answer
        await _held(held, AWAY_S)
        kube("--namespace", NAMESPACE, "scale", f"deployment/{NAME}-scaler", "--replicas=2")
        await until_beside(lambda: len(release.ready("scaler")) > 1, "the scaler is back", 60.0)
        await asyncio.sleep(AWAY_S / 2)
    await _asleep(release)


async def test_an_upgrade_ends_while_a_model_sleeps_and_rollback_answers_once(release: Release) -> None:
    await _asleep(release)
    await asyncio.to_thread(release.upgrade, {"aggregator": {"config": {"batching": {"max_held_tokens": 400_000}}}})
    assert not release.pods("model-server")
    async with checked(kafka_on_node.BOOTSTRAP) as traffic, traffic.flowing(20.0, 0):
        await asyncio.to_thread(release.rollback)
        await asyncio.sleep(5.0)
    await _asleep(release)


def test_the_webhook_refuses_a_second_scaled_object_for_one_model(release: Release) -> None:
    assert release.name == NAME
    second = keda_on_cluster.scaled_object("second", DEPLOYMENT)
    assert f"already managed by the ScaledObject '{DEPLOYMENT}'" in keda_on_cluster.refused(second, NAMESPACE)


async def _asleep(release: Release) -> None:
    await until_beside(lambda: not release.pods("model-server"), "no model server is left", 180.0)


async def _steady(release: Release) -> int:
    """Wait until several are ready, as many as are wanted, for some seconds; how many."""
    since_s, count = time.monotonic(), 0
    async with asyncio.timeout(180.0):
        while time.monotonic() < since_s + 8.0 or count < 2:
            wanted, ready = _replicas(), len(release.ready("model-server"))
            if wanted != ready or ready != count:
                since_s, count = time.monotonic(), ready
            await asyncio.sleep(1.0)
    return count


async def _held(count: int, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        assert _replicas() >= count
        await asyncio.sleep(1.0)


def _scaled_object() -> Object:
    return get("scaledobject", DEPLOYMENT)


def _falls_back() -> Any:
    return condition(_scaled_object(), "Fallback")


def _replicas() -> int:
    return int(get("deployment", DEPLOYMENT)["spec"]["replicas"])


def _events(reason: str) -> str:
    return "\n".join(each["message"] for each in get("events", "--field-selector", f"reason={reason}")["items"])


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
