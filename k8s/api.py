"""The Kubernetes API: its objects and errors, and a connection, whose client is imported only then."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k8s.connection import Kubernetes

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Object = dict[str, Any]


class KubernetesError(Exception):
    """The API refused, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


def connect() -> Kubernetes:
    """Connect with the service account of the pod; outside of a cluster, with the kubeconfig. Raises StartError."""
    from k8s.connection import Kubernetes, configuration  # noqa: PLC0415 - takes 0.4 s of CPU and 15 MB

    return Kubernetes(configuration())


def slices_of(service: str) -> str:
    """The selector of a Service's EndpointSlices."""
    return f"kubernetes.io/service-name={service}"


def this_namespace() -> str:
    """The namespace of this pod; outside of a cluster `default`, as for kubectl."""
    try:
        return _NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"
