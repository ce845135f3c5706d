"""Clients that balance load themselves, over the headless Service, see nothing of aggregators that are replaced."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from subprocess import PIPE

import pytest

from tests.chart.rendering import ROOT
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.one_node_cluster import SCRIPTS
from tests.cluster.release import NAME, NAMESPACE, Release, get, kube
from tests.cluster.values import synthetic
from tests.support.until import wait_until

CALLS_PER_S = 25.0
ROLLS = 2


@pytest.fixture(scope="module")
def release(new_release: NewRelease) -> Generator[Release]:
    values = synthetic(kafka_on_node.BOOTSTRAP, autoscaling={"mode": "none"})
    del values["aggregator"]["preStopSeconds"]  # the chart's own is what lets clients find the new pods in time
    with new_release(values).installed() as release:
        yield release


@pytest.mark.parametrize("options", [(), ("--no-retries",)], ids=["retried", "sent once"])
def test_callers_over_the_headless_service_see_nothing_of_rolls(release: Release, options: Sequence[str]) -> None:
    target = f"dns:///{NAME}-aggregator-pods.{NAMESPACE}.svc.cluster.local:50051"
    command = (str(SCRIPTS / "lab"), sys.executable, "-m", "tests.cluster.self_balancing", target, str(CALLS_PER_S))
    with subprocess.Popen((*command, *options), stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT) as calling:
        time.sleep(5.0)
        for _ in range(ROLLS):
            before = release.ready("aggregator")
            kube("--namespace", NAMESPACE, "rollout", "restart", f"deployment/{NAME}-aggregator")
            _rolled()
            assert not set(before) & set(release.ready("aggregator"))
        wait_until(_nobody_leaves, "those that were replaced are gone", 120.0)
        time.sleep(5.0)
        told = json.loads(calling.communicate(timeout=60.0)[0])
    assert told["errors"] == [], f"{told['answered']} were answered, {len(told['errors'])} were not"
    assert told["answered"] > 60 * CALLS_PER_S


def _rolled() -> None:
    def complete() -> bool:
        now = get("deployment", f"{NAME}-aggregator")
        status = now["status"]
        counts = {status.get(name) for name in ("updatedReplicas", "replicas", "readyReplicas")}
        seen: bool = status.get("observedGeneration") == now["metadata"]["generation"]
        return seen and counts == {now["spec"]["replicas"]}

    wait_until(complete, "the aggregators are replaced", 180.0)


def _nobody_leaves() -> bool:
    found = get("pods", "--selector", "app.kubernetes.io/component=aggregator")["items"]
    return all("deletionTimestamp" not in pod["metadata"] for pod in found)
