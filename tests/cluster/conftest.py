"""The cluster, its images and a Kafka on its node: built and started once for a run, stopped at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.stack.jars import kafka_classpath
from loadtest.stack.kafka import KafkaBroker
from tests.chart.package import packaged
from tests.cluster import images
from tests.cluster import keda as keda_on_cluster
from tests.cluster.kafka_on_node import kafka_on_node
from tests.cluster.one_node_cluster import OneNodeCluster
from tests.cluster.release import NAMESPACE, Release, create_namespace, kube, kube_wait, offer_gpus

GPUS = 8
TIMEOUT_S = 2700
WITH_KEDA = {"test_keda.py", "test_modes.py"}

NewRelease = Callable[..., Release]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of the cluster waits for pods, upgrades and drains; the first one for all to be built."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def on_progress(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Says what is being done, past pytest's capture."""
    capture: Any = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(what: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"\n==> {what}")
            sys.stderr.flush()

    return say


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, on_progress: Callable[[str], None]) -> Iterator[OneNodeCluster]:
    """A running cluster with the project's images, whose network this process has joined."""
    chosen = {item.path.name for item in request.session.items}
    with_vllm = "test_vllm.py" in chosen
    lab = OneNodeCluster(on_progress, on_disk=with_vllm)
    lab.build()
    images.build_light(lab)
    if with_vllm:
        images.build_cpu(lab)
    if "test_gpu_image.py" in chosen and images.HAS_ROOM_FOR_GPU:
        images.build_gpu(lab)
    if chosen & WITH_KEDA:
        lab.build_keda()
    kafka_classpath()  # the cluster's network has no way out, from where it could be fetched
    try:
        lab.up()
        lab.load(images.AGGREGATOR, images.SYNTHETIC)
        if chosen & WITH_KEDA:
            lab.load(keda_on_cluster.IMAGE)
        offer_gpus(GPUS)
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="module")
def kafka(lab: OneNodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Apache Kafka on the cluster's node, without topics."""
    assert lab is not None
    with kafka_on_node(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def keda(lab: OneNodeCluster) -> Iterator[None]:
    """KEDA on the cluster, which serves the external metrics API; for the files of WITH_KEDA."""
    assert lab is not None
    try:
        keda_on_cluster.install()
        yield
    finally:
        keda_on_cluster.uninstall()


@pytest.fixture(scope="module")
def new_release(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Generator[NewRelease]:
    """Makes releases to install in a namespace that enforces the restricted standard; takes it away with all in it."""
    assert kafka.exit_code is None
    folder: Path = tmp_path_factory.mktemp("release")
    create_namespace()

    def new(values: dict[str, Any], *, version: int = 4) -> Release:
        return Release(folder, values, version, chart=packaged(folder, version))

    yield new
    kube("delete", "apiservice", "v1beta1.external.metrics.k8s.io", "--ignore-not-found")
    kube_wait("delete", "namespace", NAMESPACE, "--wait", timeout_s=120.0)
