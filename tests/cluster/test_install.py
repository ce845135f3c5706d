"""One `helm install` in a namespace of the restricted standard: all is ready, and embeds what it should."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
import yaml

from loadtest.questions import bundled_questions
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import DEPLOYMENT, MODEL, NAME, KubectlError, Release, condition, get, kube, metrics_api
from tests.cluster.values import DIMENSIONS, synthetic
from tests.faults.expected import Oracle
from tests.support.patience import patient
from tests.support.until import wait_until

KINDS = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,hpa,ingresses"


@pytest.fixture(
    scope="module", params=[pytest.param(4, id="helm4", marks=pytest.mark.short), pytest.param(3, id="helm3")]
)
def release(request: pytest.FixtureRequest, new_release: NewRelease) -> Generator[Release]:
    """Installed with Kafka's address, HTTP, the images, and pods small enough for this node."""
    http = {"enabled": True, "ingress": {"spec": {"rules": [{"host": "openai.example"}]}}}
    values = synthetic(kafka_on_node.BOOTSTRAP, aggregator={"http": http})
    with new_release(values, version=request.param).installed() as release:
        yield release
    wait_until(lambda: not release.pods("aggregator"), "the aggregators are gone")
    _nothing_is_left()


def _nothing_is_left() -> None:
    """Of the release, that is: a namespace has a ServiceAccount and a ConfigMap of its own."""
    wait_until(lambda: not _of_the_release(), "nothing is left", 60.0)
    wait_until(lambda: metrics_api() is None, "the registration of the metrics API is gone with its owner", 60.0)
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


def test_helm_test_embeds_by_grpc_over_http_and_through_kafka(release: Release) -> None:
    told = release.test()
    assert "Succeeded" in told
    if release.version > 3:
        assert {"gRPC", "HTTP", "Kafka"} == {each.split()[0] for each in told.split("well: ")[1:]} - {"metric"}


def test_embeddings_are_those_of_their_texts(release: Release) -> None:
    texts = bundled_questions()[:50]
    with grpc.insecure_channel(release.address()) as channel:
        answer = pb_grpc.EmbeddingsStub(channel).Embed(
            pb.EmbedRequest(request_id="fifty", inputs=[pb.Input(text=text) for text in texts]), timeout=patient(30.0)
        )
    assert _wrong(texts, [each.embedding for each in answer.embeddings]) == []


def _wrong(texts: list[str], vectors: list[bytes]) -> list[str]:
    oracle = Oracle(DIMENSIONS)
    return [text for text, vector in zip(texts, vectors, strict=True) if not oracle.agrees(text, vector)]


def test_so_are_those_over_http_through_the_service(release: Release) -> None:
    texts = bundled_questions()[:50]
    body = json.dumps({"model": MODEL, "input": texts, "encoding_format": "base64"}).encode()
    with urlopen(f"http://{release.address(8000)}/v1/embeddings", body, timeout=patient(30.0)) as response:
        answer = json.load(response)
    assert _wrong(texts, [base64.b64decode(each["embedding"]) for each in answer["data"]]) == []
    (rule,) = get("ingress", f"{NAME}-aggregator-http", namespace=release.namespace)["spec"]["rules"]
    backend = {"name": f"{NAME}-aggregator", "port": {"name": "http"}}
    assert rule["http"]["paths"] == [{"path": "/", "pathType": "Prefix", "backend": {"service": backend}}]


def test_the_autoscaler_reads_its_metric_through_the_api_server(release: Release) -> None:
    def is_active() -> bool:
        return bool(condition(get("hpa", DEPLOYMENT, namespace=release.namespace), "ScalingActive") == "True")

    wait_until(is_active, "the HorizontalPodAutoscaler is active", 90.0)
