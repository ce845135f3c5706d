"""What an API server wants to know of an API: discovery, and OpenAPI in both versions."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

GROUP = "external.metrics.k8s.io"
VERSION = "v1beta1"
_LIST = f"io.k8s.metrics.pkg.apis.external_metrics.{VERSION}.ExternalMetricValueList"
_PATH = f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{{metric}}"
_KIND: Document = {"group": GROUP, "version": VERSION, "kind": "ExternalMetricValueList"}


def group() -> Document:
    """The API group."""
    version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version}


def groups() -> Document:
    """All groups: one."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}


def resources() -> Document:
    """The group's resources."""
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


def _value_list() -> Document:
    text: Document = {"type": "string"}
    value: Document = {
        "type": "object",
        "required": ["metricName", "metricLabels", "timestamp", "value"],
        "properties": {
            "metricName": text,
            "metricLabels": {"type": "object", "additionalProperties": text},
            "timestamp": {"type": "string", "format": "date-time"},
            "window": {"type": "integer", "format": "int64"},
            "value": {"type": "string", "description": "a quantity"},
        },
    }
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text,
            "kind": text,
            "metadata": {"type": "object"},
            "items": {"type": "array", "items": value},
        },
        "x-kubernetes-group-version-kind": [_KIND],
    }


def openapi_v2() -> Document:
    """Swagger 2.0."""
    parameters = [{"name": name, "in": "path", "required": True, "type": "string"} for name in ("namespace", "metric")]
    selector = {"name": "labelSelector", "in": "query", "type": "string"}
    answer = {"200": {"description": "OK", "schema": {"$ref": f"#/definitions/{_LIST}"}}}
    return {
        "swagger": "2.0",
        "info": {"title": "tokenbatch", "version": VERSION},
        "paths": {_PATH: {"get": _operation([*parameters, selector], answer)}},
        "definitions": {_LIST: _value_list()},
    }


def openapi_v3_index() -> Document:
    """Where version 3 describes which group."""
    return {"paths": {f"apis/{GROUP}/{VERSION}": {"serverRelativeURL": f"/openapi/v3/apis/{GROUP}/{VERSION}"}}}


def openapi_v3() -> Document:
    """OpenAPI 3.0 of the group."""
    text = {"schema": {"type": "string"}}
    parameters = [{"name": name, "in": "path", "required": True, **text} for name in ("namespace", "metric")]
    selector = {"name": "labelSelector", "in": "query", **text}
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{_LIST}"}}}
    answer = {"200": {"description": "OK", "content": content}}
    return {
        "openapi": "3.0.0",
        "info": {"title": "tokenbatch", "version": VERSION},
        "paths": {_PATH: {"get": _operation([*parameters, selector], answer)}},
        "components": {"schemas": {_LIST: _value_list()}},
    }


def _operation(parameters: list[Document], responses: Document) -> Document:
    return {
        "operationId": "getExternalMetricsV1beta1NamespacedMetric",
        "description": "the present value of a metric",
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": "get",
        "x-kubernetes-group-version-kind": _KIND,
    }


def status(code: int, reason: str, message: str) -> Document:
    """A refusal, as Kubernetes words it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
