"""Values that change roll the pods that read them and no others; values that are wrong are refused in a clear line."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import grpc
import pytest

from loadtest.stack.kafka import KafkaBroker
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import MODEL, NAME, Release, get, kube, until
from tests.cluster.values import synthetic

PREFERENCE = {
    "weight": 7,
    "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]},
}
WEIGHT = ".spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight"
COMPONENTS = ("aggregator", "model-server", "scaler")


@pytest.fixture(scope="module")
def release(new_release: NewRelease, kafka: KafkaBroker) -> Generator[Release]:
    assert kafka.exit_code is None
    release = new_release(synthetic(kafka_on_node.BOOTSTRAP))
    release.install()
    yield release
    release.uninstall()


CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({"aggregator": {"config": {"batching": {"max_held_tokens": 400_000}}}}, {"aggregator"}),
    ({"kafka": {"config": {"session_timeout_s": 20}}}, {"aggregator", "scaler"}),
    ({"modelServer": {"config": {"synthetic": {"fixed_s": 0.015}}}}, {"model-server"}),
    ({"scaler": {"config": {"policy": {"drain_s": 20}}}}, {"scaler"}),
    ({"aggregator": {"podAnnotations": {"team": "search"}}}, {"aggregator"}),
    ({"modelServer": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}, set()),
    ({"modelServer": {"env": [{"name": "OTEL_SDK_DISABLED", "value": "true"}]}}, {"model-server"}),
    ({"modelServer": {"autoscaling": {"maxReplicas": 5}}}, set()),
    ({"networkPolicy": {"enabled": False}}, set()),
]


@pytest.mark.parametrize(("change", "rolled"), CHANGES, ids=lambda each: str(each)[:50])
def test_a_change_rolls_the_pods_that_read_it(release: Release, change: dict[str, Any], rolled: set[str]) -> None:
    before = {name: set(release.ready(name)) for name in COMPONENTS}
    release.upgrade(change)
    until(lambda: all(len(release.pods(name)) == len(before[name]) for name in COMPONENTS), "the old pods are gone")
    after = {name: set(release.ready(name)) for name in COMPONENTS}
    assert {name for name in COMPONENTS if not before[name] & after[name]} == rolled
    assert {name for name in COMPONENTS if before[name] == after[name]} == set(COMPONENTS) - rolled


def test_the_autoscaler_takes_its_new_bounds(release: Release) -> None:
    release.upgrade({"modelServer": {"autoscaling": {"maxReplicas": 4}}})
    assert get("hpa", f"{NAME}-all-minilm-l6-v2")["spec"]["maxReplicas"] == 4


CONTAINER = "{.spec.containers[0]"
AGGREGATOR, SERVER, SCALER = (f"pods -l app.kubernetes.io/component={component}" for component in COMPONENTS)
HPA = "hpa/tokenbatch-all-minilm-l6-v2"
PLACED: dict[str, Any] = {
    "nodeSelector": {"kubernetes.io/hostname": "node"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERENCE]}},
    "priorityClassName": "system-cluster-critical",
    "podLabels": {"tier": "front"},
    "preStopSeconds": 1,
}
AFTER: dict[str, Any] = {
    "commonLabels": {"team": "search"},
    "aggregator": {
        **PLACED,
        "busyTarget": 0.5,
        "serviceType": "NodePort",
        "serviceAnnotations": {"balancer": "inner"},
        "startupSeconds": 60,
        "autoscaling": {"maxReplicas": 3},
    },
    "modelServer": {
        **PLACED,
        "sharedMemory": "64Mi",
        "startupSeconds": 300,
        "cache": {"size": "1Gi"},
        "gpu": {"count": 2},
        "autoscaling": {"lagRecordsPerReplica": 500, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 77}}},
    },
    "scaler": {**PLACED, "replicas": 1, "resources": {"limits": {"memory": "384Mi"}}},
    "models": [{"name": MODEL, "aliases": ["mini"], "source": {"path": "/opt/model"}}],
    "serviceAccounts": {"annotations": {"role": "reader"}},
    "networkPolicy": {"enabled": True, "clients": [{"podSelector": {"matchLabels": {"may": "call"}}}]},
    "monitoring": {"dashboard": True, "dashboardLabels": {"board": "1"}},
}
IN_FORCE = [
    *((of, "{.spec.nodeSelector.kubernetes\\.io/hostname}", "node") for of in (AGGREGATOR, SERVER, SCALER)),
    *((of, "{.spec.tolerations[0].key}", "gpu") for of in (AGGREGATOR, SERVER, SCALER)),
    *((of, f"{{{WEIGHT}}}", "7") for of in (AGGREGATOR, SERVER, SCALER)),
    *((of, "{.spec.priorityClassName}", "system-cluster-critical") for of in (AGGREGATOR, SERVER, SCALER)),
    *((of, "{.metadata.labels.tier}", "front") for of in (AGGREGATOR, SERVER, SCALER)),
    *((of, "{.metadata.labels.team}", "search") for of in (AGGREGATOR, SERVER, SCALER)),
    (AGGREGATOR, "{.spec.terminationGracePeriodSeconds}", "36"),
    (AGGREGATOR, f"{CONTAINER}.startupProbe.failureThreshold}}", "12"),
    (SERVER, f"{CONTAINER}.startupProbe.failureThreshold}}", "60"),
    (SERVER, f"{CONTAINER}.resources.limits.nvidia\\.com/gpu}}", "2"),
    (SERVER, '{.spec.volumes[?(@.name=="shared-memory")].emptyDir.sizeLimit}', "64Mi"),
    (SERVER, '{.spec.volumes[?(@.name=="cache")].emptyDir.sizeLimit}', "1Gi"),
    (SCALER, f"{CONTAINER}.resources.limits.memory}}", "384Mi"),
    (f"deployment/{NAME}-scaler", "{.status.readyReplicas}", "1"),
    (f"service/{NAME}-aggregator", "{.spec.type}", "NodePort"),
    (f"service/{NAME}-aggregator", "{.metadata.annotations.balancer}", "inner"),
    (f"hpa/{NAME}-aggregator", "{.spec.metrics[0].external.target.averageValue}", "500m"),
    (f"hpa/{NAME}-aggregator", "{.spec.maxReplicas}", "3"),
    (HPA, "{.spec.metrics[1].external.target.averageValue}", "500"),
    (HPA, "{.spec.behavior.scaleDown.stabilizationWindowSeconds}", "77"),
    (f"serviceaccount/{NAME}-aggregator", "{.metadata.annotations.role}", "reader"),
    (f"networkpolicy/{NAME}-aggregator", "{.spec.ingress[0].from[0].podSelector.matchLabels.may}", "call"),
    ("configmaps -l board=1", "{.metadata.labels.board}", "1"),
]


@pytest.fixture(scope="module")
def upgraded(release: Release) -> Release:
    """The release after one upgrade that changes all of these values at once."""
    release.upgrade(AFTER)
    until(lambda: len(get("pods")["items"]) == 4, "the old pods are gone, and two, one and one are left")
    return release


@pytest.mark.parametrize(("what", "path", "text"), IN_FORCE, ids=lambda each: each.replace(" ", ""))
def test_a_changed_value_is_in_force(upgraded: Release, what: str, path: str, text: str) -> None:
    listed = path if "/" in what.partition(" ")[0] else f"{{range .items[*]}}{path} {{end}}"
    found = kube("--namespace", upgraded.namespace, "get", *what.split(), f"--output=jsonpath={listed}").split()
    assert found
    assert set(found) == {text}


def test_a_new_alias_is_served(upgraded: Release) -> None:
    address = get("service", f"{NAME}-aggregator", namespace=upgraded.namespace)["spec"]["clusterIP"]
    with grpc.insecure_channel(f"{address}:50051") as channel:
        wanted = pb.EmbedRequest(inputs=[pb.Input(text="how far away is the moon")], model="mini")
        assert pb_grpc.EmbeddingsStub(channel).Embed(wanted, timeout=30.0).embeddings


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kafka": {"bootstrapServer": "x:1"}}, "bootstrapServer"),
        ({"aggregator": {"config": {"batching": {"token_budgets": 1}}}}, "token_budgets"),
        ({"modelServer": {"replicas": "two"}}, "replicas"),
        ({"autoscaling": {"mode": "magic"}}, "mode"),
        ({"modelServer": {"autoscaling": {"minReplicas": 0}}}, "minReplicas 0"),
        ({"aggregator": {"autoscaling": {"maxReplicas": 50}}}, "partitions"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_wrong_values_are_refused_by_their_name(release: Release, values: dict[str, Any], named: str) -> None:
    assert named in release.refused(values)
