"""Connect to the Kubernetes API; its client is imported only then."""

from __future__ import annotations

from k8s.api import Kubernetes


def connect() -> Kubernetes:
    """With the service account of the pod; outside of a cluster, with the kubeconfig. Raises StartError."""
    from k8s.connection import Connection, configuration  # noqa: PLC0415 - takes 0.4 s of CPU and 15 MB

    return Connection(configuration())
