"""Every mode of scaling with every kind of installation: the API server would take all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.chart.custom_resources import DEFINITIONS
from tests.chart.rendering import NAMESPACE, render
from tests.chart.test_combinations import KINDS, MODES
from tests.cluster.one_node_cluster import OneNodeCluster
from tests.cluster.release import KubectlError, create_namespace, kube, kube_wait

FILES = sorted(DEFINITIONS.glob("*.json"))


@pytest.fixture(scope="module", autouse=True)
def definitions(lab: OneNodeCluster) -> Iterator[None]:
    """Of the other operators' objects, in a cluster with the namespace that is rendered for."""
    assert lab is not None
    items = [json.loads(file.read_text(encoding="utf-8")) for file in FILES]
    kube("apply", "--server-side", "-f", "-", stdin=json.dumps(_list(items)))
    kube_wait("wait", "--for=condition=Established", "crd", "--all", timeout_s=60.0)
    create_namespace(NAMESPACE)
    for each in render("default"):  # a dry run makes none, and a Pod without its account is refused
        if each["kind"] == "ServiceAccount":
            kube("--namespace", NAMESPACE, "create", "serviceaccount", each["metadata"]["name"])
    yield
    kube_wait("delete", "namespace", NAMESPACE, "--wait", timeout_s=60.0)
    kube("delete", "crd", *(each["metadata"]["name"] for each in items))


def _list(items: list[dict[str, object]]) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "List", "items": items}


@pytest.mark.parametrize(("mode", "kind"), [(mode, kind) for mode in MODES for kind in KINDS])
def test_the_api_server_takes_each_combination(mode: str, kind: str) -> None:
    values = ",".join(filter(None, (f"autoscaling.mode={mode}", KINDS[kind])))
    _dry_run(render("default", "--set", values))


def test_the_api_server_refuses_what_no_schema_of_values_knows() -> None:
    wrong = render("default", "--set", "aggregator.podSpec.dnsPolicy=Somehow")
    with pytest.raises(KubectlError, match="dnsPolicy"):
        _dry_run(wrong)


def _dry_run(objects: list[dict[str, object]]) -> None:
    kube("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(_list(objects)))
