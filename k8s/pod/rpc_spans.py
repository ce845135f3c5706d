"""What the spans of gRPC calls say, by OpenTelemetry's stable conventions for RPC."""

from __future__ import annotations

_SERVER_ERRORS = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))


def rpc_attributes(method: str) -> dict[str, str]:
    """The attributes of a call of a `method`, package.Service/Method, on either side."""
    return {"rpc.system.name": "grpc", "rpc.method": method}


def error_of(code: str) -> str:
    """A status as the `error.type` of a server's span; empty for one that is no error of a server."""
    return code if code in _SERVER_ERRORS else ""
