"""One `helm install` in a namespace of the restricted standard: all is ready, and embeds what it should."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import grpc
import pytest
import yaml

from loadtest.clients.messages import NO_WISHES, request
from loadtest.questions import bundled_questions
from loadtest.stack.kafka import KafkaBroker
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import DEPLOYMENT, NAME, KubectlError, Release, get, kube, metrics_api, until
from tests.cluster.values import DIMENSIONS, synthetic
from tests.faults.expected import Oracle

pytestmark = pytest.mark.short
KINDS = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,hpa"


@pytest.fixture(scope="module", params=[4, 3], ids=["helm4", "helm3"])
def release(request: pytest.FixtureRequest, new_release: NewRelease, kafka: KafkaBroker) -> Generator[Release]:
    """Installed with nothing but Kafka's address, the images, and pods small enough for this node."""
    assert kafka.exit_code is None
    release = new_release(synthetic(kafka_on_node.BOOTSTRAP), version=request.param)
    release.install()
    yield release
    release.uninstall()
    until(lambda: not release.pods("aggregator"), "the aggregators are gone")
    _nothing_is_left()


def _nothing_is_left() -> None:
    """Of the release, that is: a namespace has a ServiceAccount and a ConfigMap of its own."""
    until(lambda: not _of_the_release(), "nothing is left", 60.0)
    until(lambda: metrics_api() is None, "the registration of the metrics API is gone with its owner", 60.0)
    everywhere = "clusterroles,clusterrolebindings"
    assert not get(everywhere, "--selector", f"app.kubernetes.io/instance={NAME}")["items"]
    in_system = get("rolebindings", "--selector", f"app.kubernetes.io/instance={NAME}", namespace="kube-system")
    assert not in_system["items"]


def _of_the_release() -> list[str]:
    found = get(KINDS, "--selector", f"app.kubernetes.io/instance={NAME}")["items"]
    return [f"{each['kind']} {each['metadata']['name']}" for each in found]


def test_every_pod_is_ready_and_asks_for_its_gpu(release: Release) -> None:
    counts = {name: len(release.ready(name)) for name in ("aggregator", "model-server", "scaler")}
    assert counts == {"aggregator": 2, "model-server": 1, "scaler": 2}
    (server,) = release.pods("model-server")
    assert server["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    restarts = [each["restartCount"] for name in counts for pod in release.pods(name) for each in _statuses(pod)]
    assert set(restarts) == {0}


def _statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod["status"]["containerStatuses"]
    return found


def test_the_namespace_refuses_what_is_not_restricted(release: Release) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "careless", "namespace": release.namespace},
        "spec": {"containers": [{"name": "it", "image": "localhost/pause:1"}]},
    }
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        kube("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))


def test_helm_test_embeds_through_kafka_and_through_grpc(release: Release) -> None:
    told = release.test()
    assert "Succeeded" in told
    if release.version > 3:
        assert "well: gRPC" in told
        assert "well: Kafka" in told


def test_embeddings_are_those_of_their_texts(release: Release) -> None:
    address = get("service", f"{NAME}-aggregator", namespace=release.namespace)["spec"]["clusterIP"]
    texts = bundled_questions()[:50]
    with grpc.insecure_channel(f"{address}:50051") as channel:
        answer = pb_grpc.EmbeddingsStub(channel).Embed(request(texts, "fifty", NO_WISHES), timeout=30.0)
    oracle = Oracle(DIMENSIONS)
    wrong = [
        text for text, each in zip(texts, answer.embeddings, strict=True) if not oracle.agrees(text, each.embedding)
    ]
    assert wrong == []


def test_the_autoscaler_reads_its_metric_through_the_api_server(release: Release) -> None:
    def able() -> bool:
        conditions = get("hpa", DEPLOYMENT, namespace=release.namespace)["status"].get("conditions", [])
        return any(each["type"] == "ScalingActive" and each["status"] == "True" for each in conditions)

    until(able, "the HorizontalPodAutoscaler is active", 90.0)
