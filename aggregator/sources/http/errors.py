"""Errors in OpenAI's form, with the status and the headers that its clients act on."""

from __future__ import annotations

from math import ceil
from typing import Any

import msgspec

from aggregator.errors import Code, InvalidRequest, RequestError
from aggregator.request.request import Failure

_MOST_CHARACTERS = 300
_STATUS: dict[Code, tuple[int, str, str]] = {
    Code.CANCELLED: (499, "api_error", "cancelled"),
    Code.INVALID_ARGUMENT: (400, "invalid_request_error", "invalid_value"),
    Code.OUT_OF_RANGE: (400, "invalid_request_error", "context_length_exceeded"),
    Code.FAILED_PRECONDITION: (400, "invalid_request_error", "failed_precondition"),
    Code.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key"),
    Code.PERMISSION_DENIED: (403, "permission_error", "permission_denied"),
    Code.NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "rate_limit_exceeded"),
    Code.UNAVAILABLE: (503, "api_error", "unavailable"),
    Code.DEADLINE_EXCEEDED: (504, "api_error", "deadline_exceeded"),
}
_INTERNAL = 500, "api_error", "internal_error"


class FieldError(InvalidRequest):
    """A field of the body is at fault: `param` is its path."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(shortened(message))
        self.param = param


class HttpError(RequestError):
    """What HTTP itself has a status for; `closes`: the connection cannot be used again."""

    def __init__(self, status: int, name: str, message: str, *, closes: bool = False, retryable: bool = False) -> None:
        super().__init__(shortened(message))
        self.status = status
        self.name = name
        self.closes = closes
        self.retryable = retryable


def shortened(message: str) -> str:
    """A message that may quote what the caller sent."""
    return message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]}…"


def body_of(message: str, kind: str, param: str | None, code: str) -> bytes:
    return msgspec.json.encode({"error": error_object(message, kind, param, code)})


def error_object(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


def described(failure: Failure, param: str | None = None) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers for a failure.

    OpenAI's clients retry 408, 409, 429 and 5xx, unless `x-should-retry` says otherwise, after `retry-after-ms`.
    """
    status, kind, code = _STATUS.get(failure.code, _INTERNAL)
    if failure.code == Code.NOT_FOUND:
        param = "model"
    headers = {"x-should-retry": "true" if failure.retryable else "false"}
    if failure.retry_after_s:
        headers["retry-after"] = str(ceil(failure.retry_after_s))
        headers["retry-after-ms"] = str(ceil(failure.retry_after_s * 1000))
    return status, body_of(failure.message, kind, param, code), headers


def error_of(failure: Failure) -> dict[str, Any]:
    _, kind, code = _STATUS.get(failure.code, _INTERNAL)
    return error_object(failure.message, kind, None, code)


def described_error(error: HttpError) -> tuple[int, bytes, dict[str, str]]:
    """The same for an error of HTTP itself."""
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    return error.status, body_of(str(error), "invalid_request_error", None, error.name), headers
