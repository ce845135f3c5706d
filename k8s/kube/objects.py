"""The objects and errors of the Kubernetes API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Object = dict[str, Any]


class KubernetesError(Exception):
    """The API refused, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


def slices_of(service: str) -> str:
    """The selector of a Service's EndpointSlices."""
    return f"kubernetes.io/service-name={service}"


def this_namespace() -> str:
    """The namespace of this pod; outside of a cluster `default`, as for kubectl."""
    try:
        return _NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"
