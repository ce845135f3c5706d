"""The gRPC options on which an aggregator and a model server must agree."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""One batch, or its vectors, is one message."""

_KEEPALIVE_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000

_LIMITS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    *_LIMITS,
    ("grpc.enable_retries", 0),  # the pipeline retries, elsewhere
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel connects afresh, whatever others went through
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_LIMITS,
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server behind it
    # Without these a server takes its clients' keepalive for abuse and hangs up.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
)
