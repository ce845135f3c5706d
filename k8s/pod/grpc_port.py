"""The address of a gRPC server, and the options that bound its connections."""

from __future__ import annotations

import grpc
import grpc.aio

from k8s.pod.addresses import split_address
from k8s.pod.errors import StartError

_FEWEST_MS_BETWEEN_PINGS = 5_000
"""Clients ping an idle connection every 10 s at the most often that gRPC for Go and for Java allows, give or take."""


def server_options(most_connections: int) -> list[tuple[str, int]]:
    """The options of every server: its connections are bounded, and clients may keep idle ones alive by pings."""
    return [
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.keepalive_time_ms", 60_000),  # a peer that vanished frees what it held
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),  # without it, two pings in two hours
        ("grpc.http2.min_ping_interval_without_data_ms", _FEWEST_MS_BETWEEN_PINGS),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server behind it
    ]


def add_port(
    server: grpc.aio.Server, setting: str, bind: str, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Let a server listen at `bind`, host:port, once it starts; returns that with the port that 0 picks.

    Raises StartError, which names the `setting`.
    """
    split_address(bind)
    try:
        port = server.add_insecure_port(bind) if credentials is None else server.add_secure_port(bind, credentials)
    except RuntimeError as error:
        raise StartError(f"{setting} {bind} cannot be bound: is another program using the port?") from error
    return f"{bind.rpartition(':')[0]}:{port}"
