"""The external metrics API, of which a cluster has one: its name, and who holds its registration."""

from __future__ import annotations

from dataclasses import dataclass

from k8s.kube.objects import Object

GROUP = "external.metrics.k8s.io"
VERSION = "v1beta1"
NAME = f"{VERSION}.{GROUP}"
PATH = f"/apis/apiregistration.k8s.io/v1/apiservices/{NAME}"
"""The APIService, in the Kubernetes API."""
MARK = "tokenbatch/scaler"
"""The annotation of an APIService that names the scaler that it was made for."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The Service of an APIService; `is_scaler`: of tokenbatch, which asks the scalers of other releases."""

    service: str
    is_scaler: bool


def holder(found: Object) -> Holder:
    """The holder of the registration. The annotation counts only if it names the same Service."""
    service = found.get("spec", {}).get("service") or {}
    name = f"{service.get('namespace', '')}/{service.get('name', '')}"
    return Holder(name, (found["metadata"].get("annotations") or {}).get(MARK) == name)
