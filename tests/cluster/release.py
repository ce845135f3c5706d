"""A release of the chart on the cluster: install, upgrade, look at, uninstall."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from tests.chart.rendering import CHART, helm, kubectl
from tests.support.patience import patient
from tests.support.until import wait_until

MODEL = "all-minilm-l6-v2"
NAMESPACE = "tokenbatch"
NAME = "tokenbatch"
DEPLOYMENT = f"{NAME}-{MODEL}"
METRICS_API = "v1beta1.external.metrics.k8s.io"
_POLL_S = 0.25

Object = dict[str, Any]


class KubectlError(AssertionError):
    """kubectl ended with an error; what it said."""


def kube(*arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
    """Run kubectl; what it printed. Raises KubectlError."""
    command = [str(kubectl()), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, input=stdin, timeout=patient(timeout_s))
    if done.returncode:
        raise KubectlError(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def kube_wait(*arguments: str, timeout_s: float) -> str:
    """Run kubectl, which itself waits for what it is told to wait for. Raises KubectlError."""
    return kube(*arguments, _until(timeout_s), timeout_s=timeout_s + 30.0)


def get(*arguments: str, namespace: str = NAMESPACE) -> Object:
    found: Object = json.loads(kube("--namespace", namespace, "get", *arguments, "--output", "json"))
    return found


def create_namespace(name: str = NAMESPACE) -> None:
    """A namespace that admits pods of the restricted standard only."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube("apply", "-f", "-", stdin=yaml.safe_dump(_object("Namespace", {"name": name, "labels": labels})))


def offer_gpus(count: int, resource: str = "nvidia.com/gpu") -> None:
    """Let the node advertise GPUs, as a device plugin would."""
    patch = [{"op": "add", "path": f"/status/capacity/{resource.replace('/', '~1')}", "value": str(count)}]
    kube("patch", "node", "node", "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}")


def metrics_api() -> Object | None:
    """The registration of the external metrics API, where there is any."""
    found = kube("get", "apiservice", METRICS_API, "--ignore-not-found", "--output", "json")
    return json.loads(found) if found else None


def give_metrics_api(namespace: str, name: str) -> None:
    """Let another Service have it, as who applies his own manifest does, and wait for the scaler to give it up."""
    change = {"spec": {"service": {"namespace": namespace, "name": name}, "caBundle": None}}
    kube("patch", "apiservice", METRICS_API, "--type=merge", f"--patch={json.dumps(change)}")
    wait_until(lambda: not (metrics_api() or {})["metadata"].get("ownerReferences"), "the scaler gives it up", 60.0)


@dataclass
class Release:
    """One release, of a helm of major version 3 or 4, with these values."""

    folder: Path
    values: Object
    version: int = 4
    namespace: str = NAMESPACE
    name: str = NAME
    chart: Path = CHART

    @contextmanager
    def installed(self, timeout_s: float = 240.0) -> Generator[Self]:
        self.install(timeout_s)
        yield self
        self.uninstall()

    def install(self, timeout_s: float = 240.0) -> str:
        """Install and wait until all is ready; what helm printed."""
        return self.helm(
            "install", self.name, str(self.chart), *self._given(), *_waiting(timeout_s), timeout_s=timeout_s
        )

    def upgrade(
        self, changes: Mapping[str, Any], *, wait: bool = True, force: bool = False, timeout_s: float = 240.0
    ) -> str:
        """Merge these values into the present ones, upgrade, and wait; `force`: over what others have set meanwhile."""
        merge(self.values, changes)
        forced = ("--force-conflicts",) if force and self.version > 3 else ()
        told = (*self._given(), *forced, *(_waiting(timeout_s) if wait else ()))
        return self.helm("upgrade", self.name, str(self.chart), *told, timeout_s=timeout_s)

    def refused(self, values: Mapping[str, Any]) -> str:
        """What helm says of an upgrade with these values besides, which it must refuse."""
        file = self.folder / "refused.yaml"
        file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        done = self._run("upgrade", self.name, str(self.chart), *self._given(), "--values", str(file))
        assert done.returncode != 0, f"helm took {values}"
        return done.stderr

    def test(self, timeout_s: float = 180.0) -> str:
        """`helm test`, with the pod's log where helm can tell it: Helm 3 removes a pod that passed before."""
        logs = ("--logs",) if self.version > 3 else ()
        return self.helm("test", self.name, *logs, _until(timeout_s), timeout_s=timeout_s)

    def rollback(self, timeout_s: float = 240.0) -> str:
        return self.helm("rollback", self.name, *_waiting(timeout_s), timeout_s=timeout_s)

    def uninstall(self, timeout_s: float = 180.0) -> str:
        return self.helm("uninstall", self.name, *_waiting(timeout_s), timeout_s=timeout_s)

    def helm(self, *arguments: str, timeout_s: float = 60.0) -> str:
        done = self._run(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"helm {arguments[0]}: {done.stderr}{done.stdout}\n{self.state()}"
        return done.stdout

    def state(self) -> str:
        """Pods, and what happened last: for a message."""
        shown = kube("--namespace", self.namespace, "get", "pods,hpa", "--output", "wide")
        events = kube("--namespace", self.namespace, "get", "events", "--sort-by=.lastTimestamp")
        return f"{shown}\n" + "\n".join(events.splitlines()[-15:])

    def address(self, port: int = 50051) -> str:
        """Of the Service of the aggregators."""
        service = get("service", f"{self.name}-aggregator", namespace=self.namespace)
        return f"{service['spec']['clusterIP']}:{port}"

    def pods(self, component: str) -> list[Object]:
        """Pods of a component that are not on their way out."""
        return [pod for pod in self._all_pods(component) if "deletionTimestamp" not in pod["metadata"]]

    def leaving(self, component: str) -> bool:
        """Whether a pod of a component is on its way out; it still answers what comes by the connections it has."""
        return any("deletionTimestamp" in pod["metadata"] for pod in self._all_pods(component))

    def ready(self, component: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods(component) if is_ready(pod)]

    def _all_pods(self, component: str) -> list[Object]:
        selector = f"app.kubernetes.io/component={component}"
        return list(get("pods", "--selector", selector, namespace=self.namespace)["items"])

    def _given(self) -> tuple[str, ...]:
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(self.values), encoding="utf-8")
        return ("--values", str(file))

    def _run(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        command = [str(helm(self.version)), *arguments, "--namespace", self.namespace]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=patient(timeout_s + 30.0))


def condition(found: Object, kind: str) -> Any:
    """The status of a condition such as Ready: True, False or Unknown, as text; None where it has none."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == kind), None)


def is_ready(pod: Object) -> bool:
    return bool(condition(pod, "Ready") == "True")


def merge(base: Object, changes: Mapping[str, Any]) -> None:
    """Write the second mapping over the first, in place."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = value


def _waiting(timeout_s: float) -> tuple[str, ...]:
    return ("--wait", _until(timeout_s))


def _until(timeout_s: float) -> str:
    """The option of kubectl and helm that bounds their waiting."""
    return f"--timeout={patient(timeout_s):.0f}s"


def _object(kind: str, metadata: Object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}
