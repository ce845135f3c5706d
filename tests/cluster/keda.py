"""KEDA's own operator, admission webhooks and metrics adapter on the cluster, by the manifests of its Go module."""

from __future__ import annotations

import yaml

from tests.cluster.one_node_cluster import HOME
from tests.cluster.release import METRICS_API, KubectlError, Object, kube, kube_wait, metrics_api
from tests.support.until import wait_until

IMAGE = "keda:2"
_MANIFESTS = HOME / "bin/keda"
_NAMESPACE = "keda"
_DEPLOYMENTS = ("keda-operator", "keda-admission", "keda-metrics-apiserver")


def install() -> None:
    kube("apply", "--server-side", "--kustomize", str(_MANIFESTS))
    for name in _DEPLOYMENTS:
        kube_wait("--namespace", _NAMESPACE, "rollout", "status", f"deployment/{name}", timeout_s=240.0)
    wait_until(_judges, "the webhooks judge", 120.0)
    _served()


def uninstall() -> None:
    """Take it away with its definitions; nothing of theirs may be left."""
    kube_wait("delete", "--ignore-not-found", "--kustomize", str(_MANIFESTS), timeout_s=120.0)


def take_metrics_api() -> None:
    """Register its adapter over whoever holds the external metrics API, as an upgrade of KEDA does."""
    manifest = str(_MANIFESTS / "config/metrics-server/api_service.yaml")
    kube("apply", "--server-side", "--force-conflicts", "--filename", manifest)
    wait_until(lambda: not (metrics_api() or {})["metadata"].get("ownerReferences"), "the scaler gives it up", 60.0)
    _served()


def scaled_object(name: str, deployment: str) -> Object:
    """One that asks nobody: by the clock, between one replica and two."""
    clock = {"timezone": "UTC", "start": "0 0 * * *", "end": "59 23 * * *", "desiredReplicas": "2"}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"name": deployment},
            "maxReplicaCount": 2,
            "triggers": [{"type": "cron", "metadata": clock}],
        },
    }


def refused(new: Object, namespace: str) -> str:
    """What KEDA's webhook has against an object that is about to be made; nothing is made."""
    try:
        kube("--namespace", namespace, "create", "--dry-run=server", "--filename", "-", stdin=yaml.safe_dump(new))
    except KubectlError as error:
        return str(error)
    return ""


def _judges() -> bool:
    ambiguous = scaled_object("ambiguous", "none")
    ambiguous["spec"]["triggers"] = [{**each, "name": "clock"} for each in 2 * ambiguous["spec"]["triggers"]]
    return "defined multiple times" in refused(ambiguous, "default")


def _served() -> None:
    kube_wait("wait", "--for=condition=Available", f"apiservice/{METRICS_API}", timeout_s=120.0)
