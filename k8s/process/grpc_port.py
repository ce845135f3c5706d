"""Where a gRPC server listens."""

from __future__ import annotations

import grpc
import grpc.aio

from k8s.process.errors import StartError


def add_port(
    server: grpc.aio.Server, setting: str, bind: str, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Let a server listen at `bind`, host:port, once it starts; returns that with the port that 0 picks.

    Raises StartError, which names the `setting`.
    """
    try:
        port = server.add_insecure_port(bind) if credentials is None else server.add_secure_port(bind, credentials)
    except RuntimeError as error:
        raise StartError(f"{setting} {bind} cannot be bound: is another program using the port?") from error
    return f"{bind.rpartition(':')[0]}:{port}"
