"""Every way in which a request can fail, with the code for its sender and whether a retry can help."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from enum import IntEnum
from typing import ClassVar

_MOST_SHOWN = 64  # characters


def shown(text: str) -> str:
    """A value of the sender, for a message: truncated, as the value can be long and a status may have only 8 KiB."""
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


class Code(IntEnum):
    """google.rpc.Code, as far as it is used."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class TokenbatchError(Exception):
    """The root. `code`: for the sender; `retriable`: whether a retry can help, after `retry_after_s`.

    `field`: of the request, where one is at fault; its path in the message of protobuf.
    """

    code: ClassVar[Code] = Code.INTERNAL
    retriable: ClassVar[bool] = False
    retry_after_s: float = 0.0
    field: str = ""


class RequestError(TokenbatchError):
    """The request itself is at fault."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class InvalidRequest(RequestError):
    """Malformed, empty, or an option the model does not take."""

    code = Code.INVALID_ARGUMENT


class NeverFits(InvalidRequest):
    """A request that could never be held with its answer: no wait helps."""

    def __init__(self, needed_bytes: int, largest_bytes: int) -> None:
        super().__init__(
            f"the request and its answer take {needed_bytes} bytes of memory: at most {largest_bytes} are taken;"
            " ask for fewer inputs or dimensions, a smaller encoding, or a lower max_tokens",
            "inputs",
        )


class UnknownModel(RequestError):
    """No model of that name or alias is configured."""

    code = Code.NOT_FOUND


class Undecodable(RequestError):
    """Bytes that are not a request at all."""

    code = Code.DATA_LOSS


class NotPermitted(RequestError):
    """A reply topic or list outside the allow list."""

    code = Code.PERMISSION_DENIED


class Unauthenticated(RequestError):
    """No credential, or one that is not known, not valid or expired."""

    code = Code.UNAUTHENTICATED


class Overloaded(TokenbatchError):
    """A queue bound is reached: try again after `retry_after_s`."""

    code = Code.RESOURCE_EXHAUSTED
    retriable = True

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelUnavailable(TokenbatchError):
    """No model server can take it now."""

    code = Code.UNAVAILABLE
    retriable = True
    retry_after_s = 1.0


class BatchFailed(TokenbatchError):
    """A model server failed a whole batch: the pipeline retries, bisects, isolates."""

    retriable = True


class ModelServerBusy(BatchFailed):
    """Refused before it started: another replica takes it, and this counts as no failure."""

    code = Code.RESOURCE_EXHAUSTED


class ModelServerLost(BatchFailed):
    """The connection or the process went away."""

    code = Code.UNAVAILABLE


class ModelServerTimedOut(ModelServerLost):
    """The batch's time-out passed, or sequences ran and nothing came: the engine may hang."""


class EngineFailed(BatchFailed):
    """The engine raised."""

    code = Code.INTERNAL


def server_error(code: int, message: str, *, whole: bool = False) -> BatchFailed:
    """The meaning of a server's status for its work: never started, server lost, or engine failed.

    `whole`: of a batch, which may be refused before it starts; else of one query or sequence. No status blames an
    input, which the aggregator has checked: only failures elsewhere and alone do that (`scheduler.retries`).
    """
    match code:
        case Code.RESOURCE_EXHAUSTED if whole:
            return ModelServerBusy(message)
        case (
            Code.INTERNAL | Code.INVALID_ARGUMENT | Code.OUT_OF_RANGE | Code.DATA_LOSS | Code.RESOURCE_EXHAUSTED
        ) | 2:  # UNKNOWN
            return EngineFailed(message)
        case Code.DEADLINE_EXCEEDED:
            return ModelServerTimedOut(message)
        case _:  # includes FAILED_PRECONDITION: another model is served there now, and the pool must notice
            return ModelServerLost(message)


@contextmanager
def ungrouped(*kinds: type[Exception]) -> Generator[None]:
    """Raise the first error of a group that holds only errors of these kinds; any other group stays as it is.

    A `raise` inside `except*` does not work: before Python 3.11.4, as in Debian 12, it is put into a group again.
    """
    try:
        yield
    except ExceptionGroup as group:
        _, others = group.split(kinds)
        if others is not None:
            raise
        raise _first(group) from None


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def is_cancelled() -> bool:
    """Whether the running task was cancelled.

    In Python 3.11 the errors of a TaskGroup, and the end of a gRPC connection, look the same or hide it.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def stray_cancellation_as(error: Exception) -> Generator[None]:
    """Raise `error` for a CancelledError that a library raises: it would end the running task without a word."""
    try:
        yield
    except asyncio.CancelledError as cancelled:
        if is_cancelled():
            raise
        raise error from cancelled


async def unless_cancelled(work: Awaitable[None]) -> None:
    """Await work that lasts; raises RuntimeError if a library cancels it."""
    with stray_cancellation_as(RuntimeError("a library cancelled this work (stray CancelledError)")):
        await work
