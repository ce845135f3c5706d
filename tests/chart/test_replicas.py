"""An upgrade leaves a Deployment the replicas that it has, whoever gave them: a field taken away would become 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.chart.in_cluster import upgrade
from tests.chart.rendering import Object, find, objects_of

DEPLOYMENTS = ("t-tokenbatch-aggregator", "t-tokenbatch-all-minilm-l6-v2")
NONE = "autoscaling.mode=none"
SCALED = "autoscaling.mode=hpa,aggregator.autoscaling.enabled=true"


async def rendered(
    folder: Path, helm: int, values: str, replicas: dict[str, int], annotations: dict[str, str]
) -> list[Object]:
    """The manifest of an upgrade where these Deployments are there."""
    done = await upgrade(folder, helm, "default", values, deployments(replicas, annotations))
    assert done.returncode == 0, done.stderr
    return objects_of(done.stdout)


def deployments(replicas: dict[str, int], annotations: Mapping[str, str] = MappingProxyType({})) -> dict[str, Object]:
    """By their paths."""
    owner = {"meta.helm.sh/release-name": "t", "meta.helm.sh/release-namespace": "ns"}
    return {
        f"/apis/apps/v1/namespaces/ns/deployments/{name}": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": name,
                "namespace": "ns",
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
                "annotations": {**owner, **annotations},
            },
            "spec": {"replicas": number},
        }
        for name, number in replicas.items()
    }


@pytest.mark.parametrize("helm", [3, 4])
async def test_autoscaling_that_is_turned_on_takes_no_replicas_away(helm: int, tmp_path: Path) -> None:
    objects = await rendered(tmp_path, helm, SCALED, dict(zip(DEPLOYMENTS, (5, 3), strict=True)), {})
    for name, replicas in zip(DEPLOYMENTS, (5, 3), strict=True):
        deployment = find(objects, "Deployment", name)
        assert deployment["spec"]["replicas"] == replicas
        assert "annotations" not in deployment["metadata"]


@pytest.mark.parametrize("helm", [3, 4])
async def test_a_number_never_said_stays_unsaid_so_that_a_roll_back_brings_none(helm: int, tmp_path: Path) -> None:
    first = await rendered(tmp_path, helm, SCALED, {}, {})
    annotations = find(first, "Deployment", DEPLOYMENTS[0])["metadata"]["annotations"]
    later = await rendered(tmp_path, helm, SCALED, dict.fromkeys(DEPLOYMENTS, 5), annotations)
    for objects in (first, later):
        for name in DEPLOYMENTS:
            deployment = find(objects, "Deployment", name)
            assert "replicas" not in deployment["spec"]
            assert deployment["metadata"]["annotations"] == annotations


async def test_without_an_autoscaler_the_values_say_it(tmp_path: Path) -> None:
    values = "autoscaling.mode=none,modelServer.replicas=3,aggregator.replicas=3"
    objects = await rendered(tmp_path, 4, values, dict.fromkeys(DEPLOYMENTS, 5), {})
    for name in DEPLOYMENTS:
        assert find(objects, "Deployment", name)["spec"]["replicas"] == 3


async def test_autoscaling_turned_off_keeps_the_replicas_unless_the_values_say(
    tmp_path: Path,
) -> None:
    first = await rendered(tmp_path, 4, NONE, {}, {})
    assert [find(first, "Deployment", name)["spec"]["replicas"] for name in DEPLOYMENTS] == [2, 1]
    never_said = await rendered(tmp_path, 4, NONE, dict.fromkeys(DEPLOYMENTS, 5), {"tokenbatch/replicas": "autoscaler"})
    for name in DEPLOYMENTS:
        deployment = find(never_said, "Deployment", name)
        assert "replicas" not in deployment["spec"]
        assert deployment["metadata"]["annotations"] == {"tokenbatch/replicas": "autoscaler"}
    said = await rendered(tmp_path, 4, NONE, dict.fromkeys(DEPLOYMENTS, 5), {})
    assert [find(said, "Deployment", name)["spec"]["replicas"] for name in DEPLOYMENTS] == [5, 5]


@pytest.mark.parametrize("mode", ["hpa", "adapter", "none"])
async def test_an_upgrade_to_who_wakes_nothing_wakes_what_keda_scaled_to_none(mode: str, tmp_path: Path) -> None:
    done = await upgrade(tmp_path, 4, "default", f"autoscaling.mode={mode}", deployments({DEPLOYMENTS[1]: 0}))
    assert done.returncode != 0
    assert "Nothing was changed" in done.stderr
    assert f"kubectl --namespace ns scale deployment/{DEPLOYMENTS[1]} --replicas=1" in done.stderr


OWN = "autoscaling.mode=keda,modelServer.autoscaling.enabled=false"


async def test_an_upgrade_leaves_asleep_what_a_scaled_object_of_its_own_wakes(tmp_path: Path) -> None:
    values = f"{OWN},modelServer.autoscaling.minReplicas=0"
    objects = await rendered(tmp_path, 4, values, {DEPLOYMENTS[0]: 2, DEPLOYMENTS[1]: 0}, {})
    assert find(objects, "Deployment", DEPLOYMENTS[1])["spec"]["replicas"] == 0
    done = await upgrade(tmp_path, 4, "default", OWN, deployments({DEPLOYMENTS[1]: 0}))
    assert done.returncode != 0
    assert "If one of your own does, upgrade with autoscaling.minReplicas 0 of its model" in done.stderr


async def test_who_says_none_gets_none(tmp_path: Path) -> None:
    values = f"{NONE},modelServer.replicas=0,aggregator.replicas=1"
    objects = await rendered(tmp_path, 4, values, dict.fromkeys(DEPLOYMENTS, 0), {})
    assert [find(objects, "Deployment", name)["spec"]["replicas"] for name in DEPLOYMENTS] == [1, 0]
