"""The channel of a client: retries of broken connections, keepalive, TLS, and a token with every call."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

_SERVICE_CONFIG = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["CANCELLED"],
                },
            }
        ],
    }
)
"""gRPC's core ends calls with CANCELLED when an aggregator stops. What the service itself refuses is retried after the
delay that it asks for, by `attempts.py`."""
_MAX_BYTES = 32 << 20
"""An answer has 16 MiB of vectors at most, and what stands around them."""
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 30_000, 10_000
"""A connection that a firewall dropped is noticed in 40 s; the service allows a ping each 20 s."""


@dataclass(frozen=True)
class Connection:
    """How to reach a service. `target`: host:port, or dns:///NAME:PORT for all of its pods.

    `ca_file`: what signed the server's certificate, for TLS; `cert_file` and `key_file`: this client's own, for mTLS;
    `tls`: TLS by the system's authorities. `token`: sent as `authorization: Bearer TOKEN`.
    """

    target: str
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    token: str = ""

    @property
    def options(self) -> list[tuple[str, Any]]:
        return [
            ("grpc.service_config", _SERVICE_CONFIG),
            ("grpc.max_receive_message_length", _MAX_BYTES),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ]

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def open(self, kind: Any = grpc) -> Any:
        """The channel; `kind`: grpc, or grpc.aio. Raises OSError for a file that cannot be read."""
        if not (self.tls or self.ca_file):
            return kind.insecure_channel(self.target, options=self.options)
        credentials = grpc.ssl_channel_credentials(_bytes(self.ca_file), _bytes(self.key_file), _bytes(self.cert_file))
        return kind.secure_channel(self.target, credentials, options=self.options)


def _bytes(name: str) -> bytes | None:
    if not name:
        return None
    return Path(name).read_bytes()
