"""Every pod meets the restricted Pod Security Standard, is probed, drains in time, and reads settings that load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator.all_settings import AllSettings
from aggregator.settings.aggregator import ENV_PREFIX as AGGREGATOR
from aggregator.wings.scaler.settings import ENV_PREFIX as SCALER
from aggregator.wings.scaler.settings import ScalerSettings
from k8s.pod.settings import load
from modelserver.all_settings import AllModelServerSettings
from modelserver.settings import ENV_PREFIX as MODELSERVER
from modelserver.settings import ModelServerSettings
from tests.chart.rendering import CASES, Object, find, pod_specs, render

VOLUMES = {"configMap", "emptyDir", "projected", "secret", "persistentVolumeClaim", "csi", "ephemeral"}
LOAD: dict[str, Callable[[Path], object]] = {
    "aggregator.yaml": lambda file: load(AllSettings, AGGREGATOR, file),
    "modelserver.yaml": lambda file: load(AllModelServerSettings, MODELSERVER, file),
    "scaler.yaml": lambda file: load(ScalerSettings, SCALER, file),
}


def specs() -> Iterator[Any]:
    for case in CASES:
        for name, spec in pod_specs(render(case)).items():
            yield pytest.param(spec, id=f"{case}-{name}")


def violations(spec: Object) -> list[str]:
    """What the restricted standard forbids, by https://kubernetes.io/docs/concepts/security/pod-security-standards."""
    pod = spec["securityContext"]
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if pod.get("runAsNonRoot") is not True or pod.get("runAsUser") == 0:
        found.append("root")
    if pod.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        found.append("seccomp")
    found += [f"volume {each['name']}" for each in spec.get("volumes", ()) if not set(each) - {"name"} <= VOLUMES]
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        found += [f"{container['name']}: {what}" for what in container_violations(container)]
    return found


def container_violations(container: Object) -> Iterator[str]:
    own = container["securityContext"]
    if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
        yield "privileges"
    if own.get("capabilities", {}).get("drop") != ["ALL"] or own.get("capabilities", {}).get("add"):
        yield "capabilities"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield "host port"


@pytest.mark.parametrize("spec", list(specs()))
def test_a_pod_meets_the_restricted_standard(spec: Object) -> None:
    assert violations(spec) == []
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in spec["containers"])


@pytest.mark.parametrize("spec", list(specs()))
def test_kubernetes_adds_no_environment_and_no_name_is_given_twice(spec: Object) -> None:
    assert spec["enableServiceLinks"] is False
    for container in spec["containers"]:
        names = [variable["name"] for variable in container.get("env", ())]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("spec", list(specs()))
def test_no_secret_stands_in_the_environment_but_the_hub_token(spec: Object) -> None:
    for container in spec["containers"]:
        referred = [variable for variable in container.get("env", ()) if "valueFrom" in variable]
        assert all(variable["name"] == "HF_TOKEN" for variable in referred)


@pytest.mark.parametrize("spec", list(specs()))
def test_every_container_asks_for_what_it_needs_and_has_a_memory_limit(spec: Object) -> None:
    for container in spec["containers"]:
        assert "cpu" in container["resources"]["requests"]
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("case", CASES)
def test_every_server_has_all_three_probes_and_starts_by_grpc(case: str) -> None:
    for each in render(case):
        if each["kind"] == "Deployment":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
            tls = any(mount["name"] == "grpc" for mount in container["volumeMounts"])
            assert ("grpc" in container["startupProbe"]) is not tls


def drain_s(case: str, deployment: Object) -> float:
    """The longest that the process may take after SIGTERM, by its own settings."""
    config = find(render(case), "ConfigMap", deployment["metadata"]["name"])["data"]
    ((name, text),) = config.items()
    values = yaml.safe_load(text)
    if name == "aggregator.yaml":
        return float(values.get("lifecycle", {}).get("grace_s", AllSettings().lifecycle.grace_s))
    if name == "modelserver.yaml":
        return ModelServerSettings().grpc.drain_timeout_s
    return 5.0


@pytest.mark.parametrize("case", CASES)
def test_the_grace_period_is_longer_than_the_pause_and_the_drain(case: str) -> None:
    for each in render(case):
        if each["kind"] == "Deployment":
            spec = each["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            pause_s = 35 if container["name"] == "aggregator" else 5
            assert container["lifecycle"]["preStop"]["exec"]["command"][-1] == f"import time; time.sleep({pause_s})"
            assert spec["terminationGracePeriodSeconds"] >= pause_s + drain_s(case, each) + 5


@pytest.mark.parametrize("case", CASES)
def test_every_settings_file_loads(case: str, tmp_path: Path) -> None:
    seen = 0
    for each in render(case):
        for name, text in each.get("data", {}).items() if each["kind"] == "ConfigMap" else ():
            if name in LOAD:
                file = tmp_path / name
                file.write_text(text, encoding="utf-8")
                LOAD[name](file)
                seen += 1
    assert seen >= 2


@pytest.mark.parametrize(
    ("case", "values", "zero"),
    [
        ("keda", "", True),
        ("keda", "modelServer.autoscaling.minReplicas=1", False),
        ("keda", "modelServer.autoscaling.enabled=false", True),
        ("keda", "modelServer.autoscaling.enabled=false,modelServer.autoscaling.minReplicas=1", False),
        ("keda", "autoscaling.mode=none", False),
        ("default", "", False),
    ],
)
def test_aggregators_are_told_only_of_models_that_scale_to_zero(
    case: str, values: str, zero: bool, tmp_path: Path
) -> None:
    objects = render(case, *(("--set", values) if values else ()))
    file = tmp_path / "aggregator.yaml"
    file.write_text(find(objects, "ConfigMap", "t-tokenbatch-aggregator")["data"]["aggregator.yaml"], encoding="utf-8")
    settings = load(AllSettings, AGGREGATOR, file)
    assert [model.scales_to_zero for model in settings.models] == [zero]
