"""KEDA mode: by the ScaledObject and the scaler's protocol, model servers go from none to several and back."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import grpc.aio
import pytest

from loadtest.stack.kafka import KafkaBroker
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.chart.custom_resources import DEFINITIONS
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.keda_operator import KedaOperator
from tests.cluster.release import DEPLOYMENT, NAME, NAMESPACE, Release, get, kube, until
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


async def test_a_call_wakes_a_model_that_is_scaled_to_none_and_is_answered(release: Release) -> None:
    operator = KedaOperator(get("scaledobject", DEPLOYMENT), 10.0, _by_cluster_ip)
    address = _by_cluster_ip(f"{NAME}-aggregator.{NAMESPACE}.svc:50051")
    async with operator.running(), grpc.aio.insecure_channel(address) as channel:
        await asyncio.to_thread(until, lambda: not release.pods("model-server"), "none is left", 120.0)
        assert len(release.ready("aggregator")) == len(release.pods("aggregator")) > 0
        request = pb.EmbedRequest(inputs=[pb.Input(text="Who wakes a model?")])
        answer = await pb_grpc.EmbeddingsStub(channel).Embed(request, timeout=60.0)
    assert answer.embeddings[0].embedding
    assert 1 in operator.replicas


def _by_cluster_ip(address: str) -> str:
    """The Service's address, as this process asks another name server than the cluster's."""
    host, _, port = address.rpartition(":")
    service, namespace, _ = host.split(".")
    assert namespace == NAMESPACE
    return f"{get('service', service)['spec']['clusterIP']}:{port}"
