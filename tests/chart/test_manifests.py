"""The manifests outside of the chart are valid and restricted, and the development values fit the chart."""

from __future__ import annotations

import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.chart.custom_resources import validate
from tests.chart.rendering import CHART, ROOT, find, objects_of, render, run
from tests.chart.test_pods import violations

DEV = ROOT / "k8s/dev"


@pytest.mark.parametrize("name", ["kafka.yaml", "namespace.yaml"])
def test_the_development_manifests_are_strictly_valid(name: str) -> None:
    for each in objects_of((DEV / name).read_text(encoding="utf-8")):
        kubernetes_validate.validate(each, "1.37", strict=True)


@pytest.mark.parametrize("file", sorted(CHART.glob("values-*.yaml")), ids=lambda file: file.stem)
def test_the_chart_takes_the_values_that_it_brings(file: Path) -> None:
    values = ("--values", str(file), "--set", "kafka.bootstrapServers=kafka:9092")
    done = run(4, "lint", "--strict", str(CHART), *values)
    assert done.returncode == 0, done.stdout
    rendered = run(4, "template", "t", str(CHART), *values)
    deployments = {
        each["metadata"]["name"]: each for each in objects_of(rendered.stdout) if each["kind"] == "Deployment"
    }
    (container,) = deployments["t-tokenbatch-all-minilm-l6-v2"]["spec"]["template"]["spec"]["containers"]
    assert "WARNING" not in run(4, "install", "t", str(CHART), "--dry-run=client", *values).stdout
    on_cpu = file.stem in {"values-cpu", "values-kind"}
    assert container["image"].endswith("-cpu") is on_cpu
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) is not on_cpu


@pytest.mark.parametrize(("cloud", "ports"), [("gke", [443, 80, 988]), ("eks", [443, 80])])
def test_the_identity_of_a_cloud_is_let_through_to_the_store(cloud: str, ports: list[int]) -> None:
    batches = "batches.enabled=true,batches.store=s3://bucket/a,aggregator.http.enabled=true"
    objects = render("default", "--values", str(CHART / f"values-{cloud}.yaml"), "--set", batches)
    egress = find(objects, "NetworkPolicy", "t-tokenbatch-aggregator")["spec"]["egress"]
    assert ports in [[each.get("port") for each in rule["ports"]] for rule in egress]


def test_the_development_broker_is_let_into_the_restricted_namespace() -> None:
    (deployment,) = (
        each for each in objects_of((DEV / "kafka.yaml").read_text("utf-8")) if each["kind"] == "Deployment"
    )
    assert violations(deployment["spec"]["template"]["spec"]) == []


def test_the_keda_example_asks_as_the_chart_does() -> None:
    (example,) = objects_of((ROOT / "k8s/examples/keda-scaledobject.yaml").read_text(encoding="utf-8"))
    validate(example)
    (rendered,) = (
        each
        for each in render("keda")
        if each["kind"] == "ScaledObject" and each["metadata"]["name"] == "t-tokenbatch-all-minilm-l6-v2"
    )
    assert {key: value for key, value in example["spec"].items() if key.endswith("Period")} == {
        key: value for key, value in rendered["spec"].items() if key.endswith("Period")
    }
    example_trigger, rendered_trigger = (each["spec"]["triggers"][0] for each in (example, rendered))
    assert example_trigger["type"] == rendered_trigger["type"] == "external-push"
    assert example_trigger["metadata"].keys() == rendered_trigger["metadata"].keys()
    assert example["spec"]["fallback"] == rendered["spec"]["fallback"]


def test_the_keda_example_has_all_that_it_needs_and_the_values_it_names() -> None:
    text = (ROOT / "k8s/examples/keda-scaledobject.yaml").read_text(encoding="utf-8")
    (example,) = objects_of(text)
    named = yaml.safe_load("\n".join(line.removeprefix("#     ") for line in text.splitlines() if "#     " in line))
    settings = ("--set-json", ",".join(f"{name}={json.dumps(value)}" for name, value in named.items()))
    rendered = render("default", *settings, "--set", "fullnameOverride=tokenbatch")
    told = find(rendered, "ConfigMap", "tokenbatch-aggregator")["data"]["aggregator.yaml"]
    (model,) = yaml.safe_load(told)["models"]
    assert model["scales_to_zero"] is (example["spec"]["minReplicaCount"] == 0)
    found = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    assert ("Deployment", example["spec"]["scaleTargetRef"]["name"]) in found
    address = example["spec"]["triggers"][0]["metadata"]["scalerAddress"]
    assert ("Service", address.partition(".")[0]) in found
    assert ("ScaledObject", example["spec"]["scaleTargetRef"]["name"]) not in found
