"""Values that change roll the pods that read them and no others; values that are wrong are refused in a clear line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.chart.custom_resources import DEFINITIONS
from tests.cluster import kafka_on_node
from tests.cluster.conftest import GPUS, NewRelease
from tests.cluster.one_node_cluster import OneNodeCluster
from tests.cluster.release import (
    NAMESPACE,
    Object,
    Release,
    create_namespace,
    get,
    is_ready,
    kube,
    kube_wait,
    offer_gpus,
)
from tests.cluster.upgrades import everything, pods, stages
from tests.cluster.upgrades.effects import Stage
from tests.cluster.values import synthetic
from tests.support.certificates import Authority
from tests.support.patience import patient
from tests.support.until import wait_until

COMPONENTS = ("aggregator", "model-server", "scaler")
CLAIMS = 4
TOKEN, AUTHORITY, SERVER_NAME = "token-of-search", Authority(), "localhost"


@pytest.fixture(scope="module")
def new_release_there(lab: OneNodeCluster, new_release: NewRelease) -> Generator[NewRelease]:
    """Makes releases where there is what the values speak of: others' definitions, GPUs, volumes, Secrets, images."""
    definitions = [*(json.loads(file.read_text(encoding="utf-8")) for file in DEFINITIONS.glob("*.json")), *STRIMZI]
    kube("apply", "--server-side", "-f", "-", stdin=json.dumps({**LIST, "items": definitions}))
    kube_wait("wait", "--for=condition=Established", "crd", "--all", timeout_s=60.0)
    create_namespace(everything.STRIMZI["namespace"])
    offer_gpus(GPUS, everything.GPU)
    lab.inside("install", "--directory", "--owner=10001", VOLUME)
    kube("apply", "-f", "-", stdin=json.dumps({**LIST, "items": [*_cluster_wide(), *_secrets()]}))
    for name, source in stages.SOURCES.items():
        image = f"embeddings/{name.lower()}"
        for copy in (f"{pods.MIRROR}/{image}:{pods.TAG}", *(f"{host}/{image}@{stages.DIGEST}" for host in HOSTS)):
            lab.inside("ctr", "--namespace=k8s.io", "images", "tag", f"localhost/{source}", copy)
    yield new_release
    kube_wait("delete", "namespace", everything.STRIMZI["namespace"], "--wait", timeout_s=60.0)
    kube("delete", "crd", *(each["metadata"]["name"] for each in definitions))


@pytest.fixture(scope="module")
def release(new_release_there: NewRelease) -> Generator[Release]:
    with new_release_there(synthetic(kafka_on_node.BOOTSTRAP)).installed() as release:
        yield release


LIST = {"apiVersion": "v1", "kind": "List"}
HOSTS = (pods.MIRROR, stages.OTHER)
VOLUME = "/var/lib/kubelet/claims"
STRIMZI: list[Object] = [
    {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}s.kafka.strimzi.io"},
        "spec": {
            "group": "kafka.strimzi.io",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": f"{kind.lower()}s"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == "v1",
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                }
                for version in ("v1", "v1beta2")
            ],
        },
    }
    for kind in ("KafkaTopic", "KafkaUser")
]
"""Its own definitions come with no package that this project could take them from: these take whatever is given."""


def _cluster_wide() -> Iterator[Object]:
    """A runtime class, and a volume for each claim."""
    yield {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": pods.pods("scaler")["runtimeClassName"]},
        "handler": "runc",
    }
    size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
    for number in range(CLAIMS):
        spec = {"capacity": size, "accessModes": modes, "storageClassName": "fast", "hostPath": {"path": VOLUME}}
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"volume-{number}"},
            "spec": {**spec, "persistentVolumeReclaimPolicy": "Retain"},
        }
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept", "namespace": NAMESPACE},
        "spec": {"accessModes": modes, "storageClassName": "fast", "resources": {"requests": size}},
    }


def _secrets() -> Iterator[Object]:
    """Those that the values name, with what the processes can read."""
    pair = AUTHORITY.issue("server")
    ca = AUTHORITY.cert.decode()
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    contents = {
        "kafka-user": {"word": "secret word", "bearer": "bearer of news"},
        "kafka-ca": {"ca": ca},
        "kafka-pair": {"cert": pair.cert.decode(), "key": pair.key.decode()},
        "hub": {"token": "hf_none"},
        "door": {"cert": pair.cert.decode(), "key": pair.key.decode(), "ca": ca},
        "callers": {"list": f"search sha256:{digest}\n", "keys": json.dumps({"keys": [_jwk()]})},
    }
    for name, content in contents.items():
        where = {"name": name, "namespace": NAMESPACE}
        yield {"apiVersion": "v1", "kind": "Secret", "metadata": where, "stringData": content}


def _jwk() -> Object:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return {**ECAlgorithm.to_jwk(key, as_dict=True), "kid": "house", "alg": "ES256", "use": "sig"}


CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({"aggregator": {"config": {"batching": {"max_held_tokens": 400_000}}}}, {"aggregator"}),
    ({"kafka": {"config": {"client": {"session_timeout_s": 20}}}}, {"aggregator", "scaler"}),
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
    wait_until(
        lambda: all(len(release.pods(name)) == len(before[name]) for name in COMPONENTS), "the old pods are gone"
    )
    after = {name: set(release.ready(name)) for name in COMPONENTS}
    assert {name for name in COMPONENTS if not before[name] & after[name]} == rolled
    assert {name for name in COMPONENTS if before[name] == after[name]} == set(COMPONENTS) - rolled


@pytest.mark.parametrize("stage", stages.STAGES[:-1], ids=lambda stage: stage.name)
def test_every_value_of_an_upgrade_takes_effect(release: Release, stage: Stage) -> None:
    _upgrade(release, stage)


def _upgrade(release: Release, stage: Stage) -> None:
    """Values that show before the upgrade what they are to show after it would prove nothing."""
    stage.prepare()
    before = stage.look()
    if stage.cannot_run:
        release.upgrade(stage.values, wait=False)
    else:
        release.upgrade(stage.values, force=stage.unscaled)
        if stage.unscaled:
            release.upgrade(stage.values, force=True)
        wait_until(_completed, "the old pods are gone, and as many are left as are asked for", 120.0)
    after = stage.look()
    looks = list(zip(stage.effects, before, after, strict=True))
    assert {f"{it.value} {it.of}": was for it, was, _ in looks if was == stage.expected(it)} == {}
    assert {f"{it.value} {it.of}": now for it, _, now in looks if now != stage.expected(it)} == {}


def _completed() -> bool:
    asked = sum(each["spec"]["replicas"] for each in get("deployments")["items"])
    present = get("pods")["items"]
    return len(present) == asked and all(is_ready(each) for each in present)


def test_the_secrets_of_kafka_are_files_in_the_pods(release: Release) -> None:
    pod = release.ready("aggregator")[0]
    folder = "/etc/tokenbatch/kafka"
    told = kube("--namespace", release.namespace, "exec", pod, "--", "cat", f"{folder}/password", f"{folder}/token")
    assert told == "secret wordbearer of news"


def test_the_door_lets_in_whom_it_knows_by_a_new_alias(release: Release) -> None:
    address = get("service", "tokenbatch-vectors-aggregator", namespace=release.namespace)["spec"]["clusterIP"]
    client = AUTHORITY.issue("client")
    credentials = grpc.ssl_channel_credentials(AUTHORITY.cert, client.key, client.cert)
    named = [("grpc.ssl_target_name_override", SERVER_NAME)]
    wanted = pb.EmbedRequest(inputs=[pb.Input(text="how far away is the moon")], model="mini")
    with grpc.secure_channel(f"{address}:50051", credentials, options=named) as channel:
        stub = pb_grpc.EmbeddingsStub(channel)
        metadata = (("authorization", f"Bearer {TOKEN}"),)
        assert stub.Embed(wanted, timeout=patient(30.0), wait_for_ready=True, metadata=metadata).embeddings
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            stub.Embed(wanted, timeout=patient(30.0))


def test_every_value_of_an_upgrade_whose_pods_cannot_run_takes_effect(release: Release) -> None:
    _upgrade(release, stages.STAGES[-1])
