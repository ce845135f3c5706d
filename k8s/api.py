"""The calls to the Kubernetes API and their errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Protocol

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Object = dict[str, Any]


class KubernetesError(Exception):
    """The API refused, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


class Kubernetes(Protocol):
    """An API server, used by one account. Objects are plain JSON, so fields that this code does not know are kept."""

    async def get(self, path: str) -> Object:
        """An object, or a list; `path` may have a query. Raises KubernetesError."""
        ...

    async def update(self, path: str, content: Object) -> Object:
        """Replace an object; 409 when it changed since it was read. Raises KubernetesError."""
        ...

    async def patch(self, path: str, content: Object) -> Object:
        """Merge into an object. Raises KubernetesError."""
        ...

    async def create(self, path: str, content: Object) -> Object: ...

    async def apply(self, path: str, content: Object, manager: str, *, force: bool) -> Object:
        """Server-side apply: make or change an object; 409 if a field of another manager differs, unless forced.

        Raises KubernetesError.
        """
        ...

    def watch_endpoint_slices(self, namespace: str, service: str, version: str) -> AsyncGenerator[Object]:
        """Events of a Service's EndpointSlices after the version of a list, until the server ends the watch.

        Raises KubernetesError.
        """
        ...

    async def close(self) -> None: ...


def slices_of(service: str) -> str:
    """The selector of a Service's EndpointSlices."""
    return f"kubernetes.io/service-name={service}"


def this_namespace() -> str:
    """The namespace of this pod; outside of a cluster `default`, as for kubectl."""
    try:
        return _NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"
