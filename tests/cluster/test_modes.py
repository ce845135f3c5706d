"""From any mode to any other and back, under load and beside KEDA: --wait returns, no record is lost, no call fails."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest

from tests.cluster import kafka_on_node
from tests.cluster import keda as keda_on_cluster
from tests.cluster.conftest import NewRelease
from tests.cluster.release import (
    DEPLOYMENT,
    METRICS_API,
    NAME,
    NAMESPACE,
    Object,
    Release,
    condition,
    get,
    kube,
    metrics_api,
)
from tests.cluster.traffic import checked
from tests.cluster.values import synthetic
from tests.support.until import until_beside, wait_until

RECORDS_PER_S, CALLS_PER_S = 20.0, 10.0
SERVERS, AGGREGATORS = 2, 2
TOUR = ("hpa", "keda", "none", "adapter", "keda", "hpa", "adapter", "none", "hpa")
"""The modes in turn; each is rolled back to from the next one. With those, all twelve ways."""
OWNERSHIP = "validations.keda.sh/hpa-ownership"


@pytest.fixture(scope="module")
def release(new_release: NewRelease, keda: None) -> Generator[Release]:
    """Between as many pods as there are: what moves them is the mode alone."""
    assert keda is None
    kube("delete", "apiservice", METRICS_API)  # which the first mode wants for the scaler
    values = synthetic(
        kafka_on_node.BOOTSTRAP,
        autoscaling={"mode": TOUR[0]},
        modelServer={"autoscaling": {"minReplicas": SERVERS, "maxReplicas": 4}},
        aggregator={"autoscaling": {"minReplicas": AGGREGATORS, "maxReplicas": 4}},
    )
    with new_release(values).installed() as release:
        yield release


def test_the_webhook_lets_keda_come_beside_the_charts_autoscaler_alone(release: Release) -> None:
    assert release.values["autoscaling"]["mode"] == "hpa"
    new = keda_on_cluster.scaled_object("beside", DEPLOYMENT)
    assert keda_on_cluster.refused(new, NAMESPACE) == ""
    annotate = ("--namespace", NAMESPACE, "annotate", "hpa", DEPLOYMENT)
    kube(*annotate, f"{OWNERSHIP}-")
    wait_until(lambda: "already managed by the hpa" in keda_on_cluster.refused(new, NAMESPACE), "it is refused", 10.0)
    kube(*annotate, f"{OWNERSHIP}=false")


def test_keda_is_refused_beside_the_scalers_metrics_api_changing_nothing(release: Release) -> None:
    wait_until(lambda: metrics_api() is not None, "the scaler serves the metrics API", 60.0)
    before = get("deployment,hpa,scaledobject,configmap,apiservice")["items"]
    said = release.refused({"autoscaling": {"mode": "keda"}})
    assert "helm upgrade --install keda" in said
    assert "Nothing was changed" in said
    assert _specs(get("deployment,hpa,scaledobject,configmap,apiservice")["items"]) == _specs(before)


def _specs(objects: list[Object]) -> list[Any]:
    return [(each["kind"], each["metadata"]["name"], each.get("spec"), each.get("data")) for each in objects]


async def test_every_way_between_modes_and_back_loses_nothing(release: Release) -> None:
    await until_beside(lambda: len(release.ready("model-server")) >= SERVERS, "servers are ready", 120.0)
    async with (
        checked(kafka_on_node.BOOTSTRAP, release.address()) as traffic,
        traffic.flowing(RECORDS_PER_S, CALLS_PER_S),
    ):
        for before, mode in pairwise(TOUR):
            await asyncio.to_thread(_to, release, before, mode)
            await asyncio.to_thread(_back, release, mode, before)
            await asyncio.to_thread(_to, release, before, mode)
        await asyncio.sleep(5.0)
    assert traffic.calls.answered


def _to(release: Release, before: str, mode: str) -> None:
    _serve_metrics(before, mode)
    release.upgrade({"autoscaling": {"mode": mode}}, force=True)
    _nothing_lost(release, mode)


def _back(release: Release, before: str, mode: str) -> None:
    _serve_metrics(before, mode)
    release.rollback()
    _nothing_lost(release, mode)


def _serve_metrics(before: str, mode: str) -> None:
    """The external metrics API is served by who will be asked, as the chart demands."""
    if before == "hpa" and mode == "keda":
        keda_on_cluster.take_metrics_api()
    elif mode == "hpa" and metrics_api() is not None:
        kube("delete", "apiservice", METRICS_API)


def _nothing_lost(release: Release, mode: str) -> None:
    kinds = {"keda": "scaledobject", "none": "deployment"}
    assert get(kinds.get(mode, "hpa"), DEPLOYMENT)["metadata"]["name"] == DEPLOYMENT
    if mode == "keda":
        wait_until(
            lambda: _is_scaled_by_keda(DEPLOYMENT) and _is_scaled_by_keda(f"{NAME}-aggregator"), "KEDA scales", 60.0
        )
    assert get("deployment", DEPLOYMENT)["spec"]["replicas"] >= SERVERS
    assert len(release.ready("model-server")) >= SERVERS
    assert len(release.ready("aggregator")) >= AGGREGATORS


def _is_scaled_by_keda(name: str) -> bool:
    if condition(get("scaledobject", name), "Ready") != "True":
        return False
    found = get("hpa", "--selector", f"scaledobject.keda.sh/name={name}")["items"]
    return [condition(each, "ScalingActive") for each in found] == ["True"]
