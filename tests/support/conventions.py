"""OpenTelemetry's conventions for the spans that tokenbatch exports, as assertions."""

from __future__ import annotations

from tests.support.otlp_collector import ExportedSpan

SERVER_ERRORS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""The statuses of gRPC that are errors of a server."""


def http_error(status: int) -> str | None:
    """The `error.type` of a status: one that blames the caller is no error of a server."""
    return str(status) if status >= 500 else None


def conforms(span: ExportedSpan, secret: str) -> None:
    """Assert of a span, by its kind: name, status and required attributes, and no `secret`, which was asked."""
    attributes = span.attributes
    assert span.failed == ("error.type" in attributes), span
    assert secret not in f"{span.name}{span.message}{list(attributes.values())}", span
    if span.kind == "SERVER" and "http.request.method" in attributes:
        method, route = attributes["http.request.method"], attributes.get("http.route")
        name = "HTTP" if method == "_OTHER" else method
        assert span.name == (f"{name} {route}" if route else name)
        assert {"url.path", "url.scheme"} <= attributes.keys()
        assert attributes.get("error.type") == http_error(attributes["http.response.status_code"])
    elif span.kind == "SERVER":
        code = attributes["rpc.response.status_code"]
        assert span.name == attributes["rpc.method"]
        assert attributes["rpc.system.name"] == "grpc"
        assert attributes.get("error.type") == (code if code in SERVER_ERRORS else None)
    elif span.kind == "CLIENT" and "gen_ai.operation.name" in attributes:
        assert span.name == f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}"
        assert attributes["gen_ai.provider.name"] == "tokenbatch"
        embeds = attributes["gen_ai.operation.name"] == "embeddings"
        assert ("gen_ai.embeddings.dimension.count" in attributes) == embeds
        if "rpc.method" in attributes:
            assert attributes["rpc.system.name"] == "grpc"
            assert attributes["rpc.method"] == "modelserver.v1.ModelServer/EmbedBatch"
            assert span.failed == (attributes["rpc.response.status_code"] != "OK")
            assert {"server.address", "server.port"} <= attributes.keys()
    elif "messaging.destination.name" in attributes:
        operation = attributes["messaging.operation.name"]
        assert span.name == f"{operation} {attributes['messaging.destination.name']}"
        assert attributes["messaging.operation.type"] == operation
        assert attributes["messaging.system"] == "kafka"
        assert attributes["messaging.batch.message_count"] > 0
        assert span.kind == {"receive": "CLIENT", "send": "PRODUCER"}[operation]
    else:
        assert span.name == f"process {attributes['gen_ai.request.model']}", span
