"""How much of many values is decoded, and of many replies encoded, in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from aggregator.request.request import Request
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.wire.values import LARGE_BYTES, TURN_RECORDS

T = TypeVar("T")

TURN_PARTS = 256
"""Vectors that protobuf writes in a millisecond."""
_JSON_PARTS = 16
"""As many vectors in protobuf take as long as one in JSON."""


async def encoded(requests: Sequence[Request], write: Callable[[Request], T], as_json: Sequence[bool]) -> list[T]:
    """The reply to each completed request, as `write` makes it, in JSON or protobuf."""
    replies: list[T] = []
    turn = 0
    for request, is_json in zip(requests, as_json, strict=True):
        parts = request.kind.answer_parts(request) * (_JSON_PARTS if is_json else 1)
        if parts > TURN_PARTS or (parts > 1 and request.kind.is_large(request)):
            replies.append(await in_slow_lane(partial(write, request)))
            continue
        turn += parts
        if turn > TURN_PARTS:
            await asyncio.sleep(0)  # others have their turn
            turn = parts
        replies.append(write(request))
    return replies


def slices(values: Sequence[T], bytes_of: Callable[[T], int]) -> Iterator[list[T]]:
    """The values, in their order, in lists to decode in one turn each: some small ones, or a large one alone."""
    some: list[T] = []
    some_bytes = 0
    for value in values:
        size = bytes_of(value)
        if some and (len(some) >= TURN_RECORDS or max(size, some_bytes) >= LARGE_BYTES):
            yield some
            some, some_bytes = [], 0
        some.append(value)
        some_bytes += size
    if some:
        yield some
