"""The documents that an API server reads about an API before it forwards requests to it, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k8s.kube.external_metrics import GROUP, VERSION

Document = dict[str, Any]

_GROUP_VERSION = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
_GROUP: Document = {
    "kind": "APIGroup",
    "apiVersion": "v1",
    "name": GROUP,
    "versions": [_GROUP_VERSION],
    "preferredVersion": _GROUP_VERSION,
}
_RESOURCE = {
    "name": "externalmetrics",
    "singularName": "",
    "namespaced": True,
    "kind": "ExternalMetricValueList",
    "verbs": ["get"],
}
DOCUMENTS: Mapping[str, Document] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    f"/apis/{GROUP}": _GROUP,
    f"/apis/{GROUP}/{VERSION}": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [_RESOURCE],
    },
    # The API server asks for these two, and does not read them.
    "/openapi/v2": {"swagger": "2.0", "info": {"title": "tokenbatch", "version": VERSION}, "paths": {}},
    "/openapi/v3": {"paths": {}},
}
"""The documents by path."""


def status(code: int, reason: str, message: str) -> Document:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
