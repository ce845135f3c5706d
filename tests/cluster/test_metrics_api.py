"""The one external metrics API of a cluster: several releases share it, and another adapter's is never touched."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import (
    MODEL,
    NAMESPACE,
    Release,
    condition,
    create_namespace,
    get,
    give_metrics_api,
    kube,
    kube_wait,
    metrics_api,
)
from tests.cluster.values import synthetic
from tests.support.until import wait_until

ELSEWHERE = "elsewhere"
KEDA = ("default", "keda-operator-metrics-apiserver")
REGISTERED = {"first": (NAMESPACE, "first-tokenbatch-scaler"), "second": (ELSEWHERE, "second-tokenbatch-scaler")}


@pytest.fixture(scope="module")
def releases(new_release: NewRelease) -> Generator[dict[str, Release]]:
    """Two of them, in a namespace each, on topics and groups of their own."""
    create_namespace(ELSEWHERE)
    found: dict[str, Release] = {}
    for name, (namespace, _) in REGISTERED.items():
        release = new_release(synthetic(kafka_on_node.BOOTSTRAP, **_small(name)))
        release.folder = release.folder / name
        release.folder.mkdir()
        release.name, release.namespace = name, namespace
        release.install()
        found[name] = release
    yield found
    for release in found.values():
        if release.helm("list", "--short", "--filter", f"^{release.name}$").strip():
            release.uninstall()
    kube_wait("delete", "namespace", ELSEWHERE, "--wait", timeout_s=120.0)


def _small(name: str) -> dict[str, Any]:
    config = {"group_id": name, "topics": [{"name": f"{name}.requests"}], "reply_topic": f"{name}.replies"}
    return {
        "kafka": {"config": config},
        "aggregator": {"replicas": 1, "autoscaling": {"enabled": False}},
        "scaler": {"replicas": 1},
    }


def test_the_autoscalers_of_both_releases_read_their_figures(releases: dict[str, Release]) -> None:
    for release in releases.values():
        wait_until(lambda release=release: _is_active(release), f"{release.name} is scaled", 90.0)  # type: ignore[misc]
        assert "well: metric" in release.test()


def _is_active(release: Release) -> bool:
    found = get("hpa", f"{release.name}-tokenbatch-{MODEL}", namespace=release.namespace)
    return bool(condition(found, "ScalingActive") == "True")


def test_another_adapters_registration_is_left_alone_and_said(releases: dict[str, Release]) -> None:
    release = releases[_holder()]
    give_metrics_api(*KEDA)
    theirs = _spec()
    wait_until(lambda: _events(release), "an event says so", 60.0)
    assert f"served by {'/'.join(KEDA)}" in _events(release)[0]["message"]
    with pytest.raises(AssertionError, match="failed"):
        release.test(150.0)
    release.upgrade({"autoscaling": {"mode": "none"}}, force=True)
    assert _spec() == theirs
    assert "which is not a scaler of tokenbatch" in release.refused({"autoscaling": {"mode": "hpa"}})
    kube("delete", "apiservice", "v1beta1.external.metrics.k8s.io")


def _holder() -> str:
    service = _spec()["service"]
    return next(name for name, place in REGISTERED.items() if place == (service["namespace"], service["name"]))


def _spec() -> dict[str, Any]:
    found = metrics_api()
    assert found is not None
    spec: dict[str, Any] = json.loads(json.dumps(found["spec"]))
    return spec


def _events(release: Release) -> list[dict[str, Any]]:
    found = get("events", "--field-selector", "reason=MetricsApiTaken", namespace=release.namespace)
    items: list[dict[str, Any]] = found["items"]
    return items


def test_when_one_release_goes_another_takes_it_over(releases: dict[str, Release]) -> None:
    for release in releases.values():
        release.upgrade({"autoscaling": {"mode": "hpa"}})
    wait_until(lambda: metrics_api() is not None, "one holds it again", 60.0)
    gone = _holder()
    (left,) = set(releases) - {gone}
    releases[gone].uninstall()
    wait_until(lambda: metrics_api() is not None and _holder() == left, "the other holds it", 90.0)
    wait_until(lambda: _is_active(releases[left]), "the other is scaled", 60.0)
    releases[left].uninstall()
    wait_until(lambda: metrics_api() is None, "nobody holds it", 60.0)
