"""The cluster's one registration of the external metrics API: made, kept, shared, and never taken from another."""

from __future__ import annotations

import asyncio
import base64
from copy import deepcopy
from typing import Any

import pytest

from aggregator.wings.scaler.external_metrics.registration import Registration
from k8s.kube.connection import Kubernetes
from k8s.kube.external_metrics import PATH
from tests.support.fake_kubernetes import FakeKubernetesApi

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
BUNDLE = b"an authority"
KEDA: dict[str, Any] = {
    "metadata": {"labels": {"app.kubernetes.io/part-of": "keda-operator"}},
    "spec": {
        "group": "external.metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"namespace": "keda", "name": "keda-operator-metrics-apiserver"},
        "caBundle": "their authority",
    },
}


def api(*releases: str) -> FakeKubernetesApi:
    """With a ClusterRole for each release."""
    fake = FakeKubernetesApi()
    for name in releases:
        fake.put(f"{ROLES}/{name}-scaler-ns", {"metadata": {"uid": f"uid of {name}"}})
    return fake


def registration(kubernetes: Kubernetes, release: str = "a") -> Registration:
    return Registration(kubernetes, "ns", f"{release}-scaler")


def events(fake: FakeKubernetesApi) -> list[dict[str, Any]]:
    return [each for path, each in fake.objects.items() if path.startswith("/api/v1/namespaces/ns/events/")]


def writes(fake: FakeKubernetesApi) -> list[str]:
    return [call for call in fake.calls if call.endswith(PATH) and not call.startswith("GET")]


def leads_to(fake: FakeKubernetesApi) -> str:
    return str(fake.objects[PATH]["spec"]["service"]["name"])


async def test_where_there_is_none_it_is_made_and_goes_with_the_release() -> None:
    fake = api("a")
    async with fake.started() as kubernetes:
        await registration(kubernetes).keep(BUNDLE)
    made = fake.objects[PATH]
    assert made["spec"]["service"] == {"namespace": "ns", "name": "a-scaler", "port": 443}
    assert base64.b64decode(made["spec"]["caBundle"]) == BUNDLE
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ClusterRole", "a-scaler-ns", "uid of a")


async def test_nothing_is_written_while_all_is_well() -> None:
    fake = api("a")
    async with fake.started() as kubernetes:
        await registration(kubernetes).keep(BUNDLE)
        fake.calls.clear()
        await registration(kubernetes).keep(BUNDLE)
    assert writes(fake) == []


@pytest.mark.parametrize("change", [{"caBundle": ""}, {"caBundle": None}, {"groupPriorityMinimum": 1}])
async def test_what_somebody_changed_of_ours_is_mended(change: dict[str, Any]) -> None:
    fake = api("a")
    async with fake.started() as kubernetes:
        await registration(kubernetes).keep(BUNDLE)
        made = deepcopy(fake.objects[PATH])
        fake.put(PATH, {**deepcopy(made), "spec": made["spec"] | change})
        await registration(kubernetes).keep(BUNDLE)
    assert fake.objects[PATH]["spec"] == made["spec"]


async def test_anothers_is_never_written_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    fake = api("a")
    fake.put(PATH, deepcopy(KEDA))
    async with fake.started() as kubernetes:
        ours = registration(kubernetes)
        for _ in range(3):
            await ours.keep(BUNDLE)
    assert writes(fake) == []
    assert fake.objects[PATH]["spec"] == KEDA["spec"]
    (event,) = events(fake)
    assert (event["type"], event["reason"]) == ("Warning", "MetricsApiTaken")
    assert "served by keda/keda-operator-metrics-apiserver, not by ns/a-scaler" in event["message"]
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == ["the metrics API is not ours"]


async def test_one_that_another_took_from_us_is_not_deleted_with_our_release() -> None:
    fake = api("a")
    async with fake.started() as kubernetes:
        ours = registration(kubernetes)
        await ours.keep(BUNDLE)
        made = deepcopy(fake.objects[PATH])
        fake.put(PATH, {"metadata": made["metadata"], "spec": deepcopy(KEDA["spec"])})  # as `kubectl apply` merges
        await ours.keep(BUNDLE)
    assert fake.objects[PATH]["spec"] == KEDA["spec"]
    assert fake.objects[PATH]["metadata"]["ownerReferences"] == []
    assert len(events(fake)) == 1


async def test_of_several_releases_one_holds_it_and_once_gone_another_does() -> None:
    fake = api("a", "b")
    async with fake.started() as kubernetes:
        first, second = registration(kubernetes, "a"), registration(kubernetes, "b")
        await asyncio.gather(first.keep(BUNDLE), second.keep(BUNDLE))
        for _ in range(2):
            await first.keep(BUNDLE)
            await second.keep(BUNDLE)
        held = leads_to(fake)
        other = {"a-scaler": second, "b-scaler": first}[held]
        assert events(fake) == []
        fake.delete(PATH)  # as Kubernetes does when the ClusterRole of its owner is gone
        await other.keep(BUNDLE)
    assert leads_to(fake) == ({"a-scaler", "b-scaler"} - {held}).pop()


@pytest.mark.parametrize(("reason", "holds"), [("ServiceNotFound", "b-scaler"), ("FailedDiscoveryCheck", "a-scaler")])
async def test_one_that_leads_to_a_scaler_that_is_no_more_is_taken_over(reason: str, holds: str) -> None:
    fake = api("a", "b")
    async with fake.started() as kubernetes:
        await registration(kubernetes, "a").keep(BUNDLE)
        status = {"conditions": [{"type": "Available", "status": "False", "reason": reason}]}
        fake.put(PATH, {**fake.objects[PATH], "status": status})
        await registration(kubernetes, "b").keep(BUNDLE)
    assert leads_to(fake) == holds


async def test_anothers_that_leads_nowhere_is_left_alone() -> None:
    fake = api("a")
    status = {"conditions": [{"type": "Available", "status": "False", "reason": "ServiceNotFound"}]}
    fake.put(PATH, {**deepcopy(KEDA), "status": status})
    async with fake.started() as kubernetes:
        await registration(kubernetes).keep(BUNDLE)
    assert writes(fake) == []
