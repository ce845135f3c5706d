"""Errors as the clients of each API read them, with the status and the headers that they act on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import msgspec

from aggregator.errors import Code, InvalidRequest
from aggregator.request.request import Failure
from k8s.pod.http.exchange import HttpError

_MOST_CHARACTERS = 300  # of a message; a client logs it whole
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
_SAMPLING = "sampling."
_NAMES = {"token_ids": "prompt", "model_revision": "tokenizer", "tenant": "user"}
"""Fields that have another name in the messages of protobuf, where those of `_SAMPLING` are in a message of their own.

A revision is pinned by its tokenizer.
"""
_MOST_COMPARED = 64
"""Characters of a field's name that are looked for in a message."""


class FieldError(InvalidRequest):
    """A field of the body is at fault; here `field` is its path in the body."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(shortened(named(message, field)), shortened(field))


def renamed(failure: Failure, names: Mapping[str, str]) -> Failure:
    """A failure with the names that fields have in the body, for those of protobuf's messages."""
    message = failure.message
    for name, in_body in names.items():
        message = re.sub(rf"\b{name}\b", in_body, message)
    field = names.get(failure.field, failure.field)
    return replace(failure, message=named(message, field), field=field)


def named(message: str, field: str) -> str:
    """A message that names the field at fault."""
    return message if field[:_MOST_COMPARED] in message else f"{field}: {message}"


def shortened(message: str) -> str:
    """A message that may quote the caller's values."""
    return message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]}…"


def body_of(error: dict[str, Any]) -> bytes:
    """OpenAI's and vLLM's clients read `error`, Voyage's and Jina's `detail`, Cohere's `message`."""
    return msgspec.json.encode({"error": error, "detail": error["message"], "message": error["message"]})


def _error_object(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


def described(failure: Failure) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers for a failure.

    OpenAI's clients retry 408, 409, 429 and 5xx, unless `x-should-retry` says otherwise, after `retry-after-ms`.
    """
    status, *_ = _STATUS.get(failure.code, _INTERNAL)
    headers = {"x-should-retry": "true" if failure.retryable else "false"}
    if failure.retry_after_s:
        headers["retry-after"] = str(ceil(failure.retry_after_s))
        headers["retry-after-ms"] = str(ceil(failure.retry_after_s * 1000))
    if failure.code == Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    return status, body_of(error_of(failure)), headers


def error_of(failure: Failure) -> dict[str, Any]:
    _, kind, code = _STATUS.get(failure.code, _INTERNAL)
    field = _NAMES.get(failure.field, failure.field.removeprefix(_SAMPLING))
    message = named(failure.message.replace(failure.field or field, field), field)
    return _error_object(message, kind, field or None, code)


def described_error(error: HttpError) -> tuple[int, bytes, dict[str, str]]:
    """The same for an error of HTTP itself."""
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.allow:
        headers["allow"] = error.allow
    return (
        error.status,
        body_of(_error_object(str(error), "invalid_request_error", None, error.name)),
        headers,
    )
