"""The documents that an API server reads about an API before it forwards requests to it, and refusals."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

GROUP = "external.metrics.k8s.io"
VERSION = "v1beta1"


def group() -> Document:
    version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version}


def groups() -> Document:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}


def resources() -> Document:
    resource = {
        "name": "externalmetrics",
        "singularName": "",
        "namespaced": True,
        "kind": "ExternalMetricValueList",
        "verbs": ["get"],
    }
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [resource],
    }


def openapi_v2() -> Document:
    """An empty Swagger 2.0 document: the API server asks for it, and does not read it."""
    return {"swagger": "2.0", "info": {"title": "tokenbatch", "version": VERSION}, "paths": {}}


def openapi_v3() -> Document:
    return {"paths": {}}


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
