"""What the chart renders is what was reviewed, valid in every supported Kubernetes, and the same with either Helm."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.chart.custom_resources import validate
from tests.chart.rendering import CASES, CHART, VALUES, Object, render, run

GOLDEN = Path(__file__).parent / "golden"
KUBERNETES = ("1.29", "1.37")
"""The oldest and the newest that are supported: what both have, those between have."""
CUSTOM = {"cert-manager.io/v1", "gateway.networking.k8s.io/v1", "keda.sh/v1alpha1", "monitoring.coreos.com/v1"}
UNCHECKED = {"kafka.strimzi.io/v1"}  # its definitions come with no package


@pytest.mark.parametrize("case", CASES)
def test_the_rendered_objects_are_the_reviewed_ones(case: str) -> None:
    rendered = yaml.safe_dump_all(render(case), sort_keys=True, width=1000)
    golden = GOLDEN / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(rendered, encoding="utf-8")
    assert rendered == golden.read_text(encoding="utf-8"), "to accept: UPDATE_GOLDEN=1 pytest tests/chart, then review"


@pytest.mark.parametrize("case", CASES)
def test_helm_3_and_helm_4_render_alike(case: str) -> None:
    assert render(case, version=3) == render(case, version=4)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_to_complain_about(version: int, case: str) -> None:
    done = run(version, "lint", "--strict", str(CHART), "--values", str(VALUES / f"{case}.yaml"))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout + done.stderr


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("case", CASES)
def test_every_object_is_strictly_valid(case: str, kubernetes: str) -> None:
    checked = 0
    for each in render(case):
        if each["apiVersion"] not in CUSTOM | UNCHECKED:
            kubernetes_validate.validate(each, kubernetes, strict=True)
            checked += 1
    assert checked > 10


def customs() -> Iterator[Any]:
    for case in CASES:
        for monitor in ("podMonitor", "serviceMonitor"):
            both = "monitoring.podMonitor=false,monitoring.serviceMonitor=false"
            for each in render(case, "--set", f"{both},monitoring.{monitor}=true,monitoring.rules=true"):
                if each["apiVersion"] in CUSTOM:
                    yield pytest.param(each, id=f"{case}-{each['kind']}-{each['metadata']['name']}-{monitor}")


@pytest.mark.parametrize("custom", list(customs()))
def test_every_custom_resource_is_strictly_what_its_operator_defines(custom: Object) -> None:
    validate(custom)


@pytest.mark.parametrize("case", CASES)
def test_names_are_names_and_labels_are_labels(case: str) -> None:
    for each in render(case):
        metadata = each["metadata"]
        longest = 63 if each["kind"] in {"Service", "Deployment"} else 253
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", metadata["name"]), metadata["name"]
        assert len(metadata["name"]) <= longest
        for value in metadata["labels"].values():
            assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value), value


@pytest.mark.parametrize("case", CASES)
def test_no_object_is_rendered_twice(case: str) -> None:
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in render(case)]
    assert len(keys) == len(set(keys))
