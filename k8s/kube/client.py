"""A connection to the Kubernetes API, whose client is imported only where it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes


def connect() -> Kubernetes:
    """Connect with the service account of the pod; outside of a cluster, with the kubeconfig. Raises StartError."""
    from k8s.kube.connection import Kubernetes, configuration  # noqa: PLC0415 - takes 0.4 s of CPU and 15 MB

    return Kubernetes(configuration())
