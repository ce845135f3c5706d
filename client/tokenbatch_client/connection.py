"""The connection of a client: its channel with keepalive, TLS and a token, and the attempts that a call gets."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tokenbatch_client.errors import CredentialError, InputError, of_call

_RETRY = {
    "maxAttempts": 5,
    "initialBackoff": "0.05s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["CANCELLED"],
}
"""gRPC's core ends calls with CANCELLED when an aggregator stops. What the service itself refuses is retried after the
delay that it asks for, by Attempts."""
_OPTIONS = {
    "grpc.service_config": json.dumps(
        {"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{"name": [{}], "retryPolicy": _RETRY}]}
    ),
    "grpc.max_receive_message_length": 32 << 20,  # an answer has 16 MiB of vectors at most, and what is around them
    "grpc.keepalive_time_ms": 30_000,  # a connection that a firewall dropped is noticed in 40 s;
    "grpc.keepalive_timeout_ms": 10_000,  # the service allows a ping each 20 s
}
_DELAY_S, _MOST_DELAY_S = 0.1, 1.0
"""Before the next attempt where the service asks for none, as it could not be reached: each is twice the last one."""
_MOST_S = 365 * 86400
"""What is further away than gRPC counts has passed for it."""


@dataclass(frozen=True)
class Connection:
    """How to reach a service. `target`: host:port, or dns:///NAME:PORT for all of its pods.

    `ca_file`: what signed the server's certificate, for TLS; `cert_file` and `key_file`: this client's own, for mTLS;
    `tls`: TLS by the system's authorities, as any of these files alone means, too. `token`: sent as
    `authorization: Bearer TOKEN`, without whitespace around it, as a file has it; empty or None: none. `retry`: False
    gives each call one attempt.
    """

    target: str
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    token: str | None = ""
    retry: bool = True

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """What goes with every call. Raises CredentialError for a token that no header can hold."""
        given: Any = "" if self.token is None else self.token
        token = given.strip() if isinstance(given, str) else given
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise CredentialError("the token is no text of printable ASCII characters", "UNAUTHENTICATED")
        return [("authorization", f"Bearer {token}")] if token else []

    def open(self, kind: Any) -> Any:
        """The channel; `kind`: grpc, or grpc.aio. Raises OSError for a file that cannot be read.

        Raises InputError for a certificate without its key, or a key without its certificate.
        """
        options = [*_OPTIONS.items(), ("grpc.enable_retries", int(self.retry))]
        if bool(self.cert_file) != bool(self.key_file):
            raise InputError("of cert_file and key_file one is missing: mTLS needs both", "INVALID_ARGUMENT")
        if not (self.tls or self.ca_file or self.cert_file):
            return kind.insecure_channel(self.target, options=options)
        files = (Path(name).read_bytes() if name else None for name in (self.ca_file, self.key_file, self.cert_file))
        return kind.secure_channel(self.target, grpc.ssl_channel_credentials(*files), options=options)

    def attempts(self, timeout_s: float) -> Attempts:
        """The attempts of one call with this time-out. Raises InputError if it is not a number above zero."""
        return Attempts(time.monotonic() + seconds(timeout_s), self.retry)


def seconds(timeout_s: Any) -> float:
    """The seconds of a deadline, a year at most. Raises InputError for what is no time."""
    if not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
        raise InputError(f"timeout_s is {timeout_s!r}: give seconds above zero", "INVALID_ARGUMENT")
    return float(min(timeout_s, _MOST_S))


@dataclass
class Attempts:
    """The attempts of one call until its deadline: where the service says that a further one can help."""

    deadline_s: float
    retry: bool
    own_delay_s: float = _DELAY_S

    @property
    def left_s(self) -> float:
        return max(0.001, self.deadline_s - time.monotonic())

    def delay_s(self, error: grpc.RpcError) -> float:
        """Seconds to wait before the next attempt. Raises the call's error where there is to be none."""
        failed = of_call(error)
        delay_s = failed.retry_after_s
        if delay_s is None:
            delay_s, self.own_delay_s = self.own_delay_s, min(2 * self.own_delay_s, _MOST_DELAY_S)
        if not self.retry or not failed.retryable or delay_s >= self.left_s:
            raise failed from error
        return delay_s
