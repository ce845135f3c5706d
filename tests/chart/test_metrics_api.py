"""A cluster has one external metrics API: who scales is refused, before anything changes, where that is another's."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from tests.chart.in_cluster import upgrade
from tests.chart.rendering import Object, find, render

PATH = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io"
KEDA = ("keda", "keda-operator-metrics-apiserver")


def registration(namespace: str, name: str, mark: str = "", owner: str = "") -> dict[str, Object]:
    """Of that Service; the mark is what a scaler writes on one that it makes, and the owner its ClusterRole."""
    metadata: Object = {"annotations": {"tokenbatch/scaler": mark}} if mark else {}
    if owner:
        metadata["ownerReferences"] = [{"kind": "ClusterRole", "name": owner, "uid": "1"}]
    service = {"namespace": namespace, "name": name, "port": 443}
    kind = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
    return {PATH: {**kind, "metadata": metadata, "spec": {"service": service}}}


def settings_in_mode_hpa() -> dict[str, Object]:
    """What the cluster has of a release that was installed with the mode hpa."""
    settings = deepcopy(find(render("default"), "ConfigMap", "t-tokenbatch-scaler"))
    settings["metadata"]["annotations"] = {"meta.helm.sh/release-name": "t", "meta.helm.sh/release-namespace": "ns"}
    return {"/api/v1/namespaces/ns/configmaps/t-tokenbatch-scaler": settings}


BEFORE = settings_in_mode_hpa()
OURS = registration("ns", "t-tokenbatch-scaler", "ns/t-tokenbatch-scaler", "t-tokenbatch-scaler-ns")
NEIGHBOURS = registration("elsewhere", "b-scaler", "elsewhere/b-scaler")
OTHERS = registration(*KEDA)
TAKEN = registration(*KEDA, "ns/t-tokenbatch-scaler", "t-tokenbatch-scaler-ns")
GIVEN_UP = registration(*KEDA, "ns/t-tokenbatch-scaler")


@pytest.mark.parametrize("helm", [3, 4])
@pytest.mark.parametrize(
    ("mode", "there"),
    [
        ("hpa", {}),
        ("hpa", OURS),
        ("hpa", NEIGHBOURS),
        ("keda", {}),
        ("keda", OTHERS),
        ("keda", GIVEN_UP),
        ("adapter", OTHERS),
        ("none", OTHERS),
        ("none", NEIGHBOURS),
        ("none", OURS),
    ],
)
async def test_what_can_work_beside_it_is_installed(
    mode: str, there: dict[str, Object], helm: int, tmp_path: Path
) -> None:
    for before in ({}, BEFORE):
        done = await upgrade(tmp_path, helm, "default", f"autoscaling.mode={mode}", before | there)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", ["keda", "adapter", "none"])
@pytest.mark.parametrize("there", [OURS, NEIGHBOURS, TAKEN])
async def test_who_never_had_the_mode_hpa_needs_no_right_to_look(
    mode: str, there: dict[str, Object], tmp_path: Path
) -> None:
    done = await upgrade(tmp_path, 4, "default", f"autoscaling.mode={mode}", there)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("helm", [3, 4])
@pytest.mark.parametrize(
    ("mode", "there", "says"),
    [
        ("hpa", OTHERS, ["the Service keda/keda-operator-metrics-apiserver", "kubectl delete apiservice v1beta1."]),
        ("hpa", GIVEN_UP, ["which is not a scaler of tokenbatch"]),
        ("keda", OURS, ["the scaler ns/t-tokenbatch-scaler", "helm upgrade --install keda", "--take-ownership"]),
        ("keda", NEIGHBOURS, ["the scaler elsewhere/b-scaler"]),
        ("keda", TAKEN, ["which gives it up within half a minute"]),
        ("none", TAKEN, ["this upgrade would delete the API"]),
    ],
)
async def test_what_would_find_no_figures_or_take_anothers_away_is_refused(
    mode: str, there: dict[str, Object], says: list[str], helm: int, tmp_path: Path
) -> None:
    done = await upgrade(tmp_path, helm, "default", f"autoscaling.mode={mode}", BEFORE | there)
    assert done.returncode != 0
    assert all(words in done.stderr for words in [*says, "Nothing was changed"]), done.stderr
    assert ("--force-conflicts" in done.stderr) is ("--take-ownership" in done.stderr and helm == 4)
