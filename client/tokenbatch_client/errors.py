"""What a call or an input can fail with, by what its caller can do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import duration_pb2

from tokenbatch_client.protos import status_pb2
from tokenbatch_client.protos.embedding.v1 import embedding_pb2

_DETAILS = "grpc-status-details-bin"
_MAY_PASS = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


class TokenbatchError(Exception):
    """A call or an input without a result.

    `code`: the gRPC status code's name. `retryable`: the same may succeed later. `retry_after_s`: seconds to wait
    before that, as the service asks; None where it says nothing.
    """

    remedy = "Report it with the message: it is not expected."
    codes: tuple[str, ...] = ()

    def __init__(self, message: str, code: str, *, retryable: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(f"{message} ({code}). {self.remedy}")
        self.message, self.code, self.retryable, self.retry_after_s = message, code, retryable, retry_after_s


class InputError(TokenbatchError, ValueError):
    """The request or the input is wrong, by the service or by this package: an argument of a call raises no other."""

    remedy = "Correct the request, or set truncate='end' for a text that is too long."
    codes = ("INVALID_ARGUMENT", "OUT_OF_RANGE", "FAILED_PRECONDITION", "UNIMPLEMENTED", "DATA_LOSS")


class NotServed(TokenbatchError):
    """No such model, or no such revision of it."""

    remedy = "Call models() for those that are served."
    codes = ("NOT_FOUND",)


class CredentialError(TokenbatchError):
    """The token is missing, unknown, expired, not allowed to do this, or no text that can be sent."""

    remedy = "Give the client a valid token."
    codes = ("UNAUTHENTICATED", "PERMISSION_DENIED")


class Overloaded(TokenbatchError):
    """The service or this tenant's share of it is full."""

    remedy = "Try again after retry_after_s, or send less at a time."
    codes = ("RESOURCE_EXHAUSTED",)


class Unavailable(TokenbatchError):
    """No server can take it now, or the connection broke."""

    remedy = "Try again after retry_after_s; see that the target's address is right."
    codes = ("UNAVAILABLE", "CANCELLED")


class Closed(TokenbatchError):
    """The client was closed, before the call or during it."""

    remedy = "Open another client, and close it when its calls are over."

    def __init__(self) -> None:
        super().__init__("the client is closed", "CANCELLED")


class DeadlineExceeded(TokenbatchError):
    """It was not done in time."""

    remedy = "Allow more time with timeout_s, or send less at a time."
    codes = ("DEADLINE_EXCEEDED",)


class ServerError(TokenbatchError):
    """The service failed on this input."""

    remedy = "Do not retry: the same input fails again for some minutes. Its cause is in the service's log."
    codes = ("INTERNAL",)


_KINDS: dict[str, type[TokenbatchError]] = {
    code: kind for kind in TokenbatchError.__subclasses__() for code in kind.codes
}
_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


def of_status(status: embedding_pb2.Status, what: str = "") -> TokenbatchError | None:
    """The error that a status in a reply stands for; None for OK. `what` begins its message."""
    if not status.code:
        return None
    name = _NAMES.get(status.code, "UNKNOWN")
    after_s = _seconds(status.retry_delay) if status.HasField("retry_delay") else None
    kind = _KINDS.get(name, TokenbatchError)
    return kind(what + status.message, name, retryable=status.retryable, retry_after_s=after_s)


def of_call(error: grpc.RpcError) -> TokenbatchError:
    """The error that a failed call stands for."""
    code: grpc.StatusCode = error.code()
    after_s = _retry_delay_s(error.trailing_metadata() or ())
    kind = _KINDS.get(code.name, TokenbatchError)
    retryable = after_s is not None or code in _MAY_PASS
    return kind(error.details() or code.name, code.name, retryable=retryable, retry_after_s=after_s)


def _retry_delay_s(metadata: Iterable[Any]) -> float | None:
    """Seconds of the RetryInfo among a call's details; None without one."""
    for key, value in metadata:
        if key == _DETAILS and isinstance(value, bytes):
            for detail in status_pb2.RpcStatus.FromString(value).details:
                if detail.type_url.endswith("/google.rpc.RetryInfo"):
                    return _seconds(status_pb2.RetryInfo.FromString(detail.value).retry_delay)
    return None


def _seconds(duration: duration_pb2.Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
