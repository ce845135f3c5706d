"""KEDA mode: by the ScaledObject and the scaler's protocol, model servers go from none to several and back."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from loadtest.stack.kafka import KafkaBroker
from tests.chart.custom_resources import DEFINITIONS
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.keda_operator import KedaOperator
from tests.cluster.release import DEPLOYMENT, NAMESPACE, Release, get, kube, until
from tests.cluster.traffic import Calls, Traffic
from tests.cluster.values import synthetic

RECORDS_PER_S = 250.0
DEFINITION = DEFINITIONS / "keda.sh_scaledobjects.json"


@pytest.fixture(scope="module")
def release(new_release: NewRelease, kafka: KafkaBroker) -> Generator[Release]:
    """With KEDA's own definition of a ScaledObject, and nobody but the test who acts on it."""
    assert kafka.exit_code is None
    kube("create", "-f", str(DEFINITION))
    kube("wait", "--for=condition=Established", "crd/scaledobjects.keda.sh", "--timeout=30s")
    values = synthetic(
        kafka_on_node.BOOTSTRAP,
        autoscaling={"mode": "keda"},
        networkPolicy={"enabled": False},
        modelServer={
            "autoscaling": {"minReplicas": 0, "maxReplicas": 4},
            "config": {"synthetic": {"fixed_s": 0.04, "per_token_s": 0.0008}},
        },
        aggregator={"autoscaling": {"enabled": False}},
        scaler={"config": {"policy": {"drain_s": 10, "peak_hold_s": 5}, "aggregators": {"interval_s": 1}}},
    )
    release = new_release(values)
    release.install()
    yield release
    release.uninstall()
    kube("delete", "crd", "scaledobjects.keda.sh")


async def test_from_none_to_several_and_back_to_none(release: Release) -> None:
    operator = KedaOperator(get("scaledobject", DEPLOYMENT), 10.0, _by_cluster_ip)
    traffic = Traffic(kafka_on_node.BOOTSTRAP, Calls(""))
    await traffic.open()
    async with operator.running():
        await asyncio.to_thread(until, lambda: not release.pods("model-server"), "none is left", 120.0)
        async with traffic.flowing(RECORDS_PER_S, 0):
            await asyncio.to_thread(until, lambda: len(release.ready("model-server")) > 1, "several are ready", 120.0)
            await asyncio.sleep(10.0)
        await traffic.drained()
        await asyncio.to_thread(until, lambda: not release.pods("model-server"), "none is left again", 180.0)
    verdict = await traffic.verdict()
    assert verdict.problems == ()
    assert operator.replicas[:2] == [0, 1]
    assert max(operator.replicas) > 1
    assert operator.replicas[-1] == 0


def _by_cluster_ip(address: str) -> str:
    """The Service's address, as this process asks another name server than the cluster's."""
    host, _, port = address.rpartition(":")
    service, namespace, _ = host.split(".")
    assert namespace == NAMESPACE
    return f"{get('service', service)['spec']['clusterIP']}:{port}"
