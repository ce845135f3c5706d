"""Queues of what was fetched: large records that wait for their decoder, and requests that wait for room."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from typing_extensions import override

from aggregator.request.request import Request
from aggregator.sources.kafka.decode import record_of
from aggregator.sources.kafka.holdings import Holdings, Sized
from aggregator.sources.kafka.offsets import CommittedOffset, Fetched, InFlightRecord

T = TypeVar("T")
Taken = TypeVar("Taken")

_TAKEN_BYTES = 256 * 1024  # of records handed on at once: the event loop is free between


class Waiting(ABC, Generic[T, Taken]):
    """Items in their order, for one taker. Those of paused topics wait while others are taken."""

    def __init__(self) -> None:
        self.paused: frozenset[str] = frozenset()
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, items: Sequence[T]) -> None:
        if items and not self._closed:
            self._items += items
            self._changed.set()

    async def take(self) -> Sequence[Taken]:
        """The next items, at least one; none once `close` was called."""
        while not (taken := self._next()) and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return taken

    def pause(self, topics: frozenset[str]) -> None:
        """Let the items of these topics, and of no others, wait. There may be room now."""
        self.paused = topics
        self._changed.set()

    def drop_fenced(self) -> None:
        """Forget what came of revoked partitions: their new owner processes it."""
        self._items = deque(item for item in self._items if not self._offset_of(item).fenced)
        self._changed.set()

    def close(self) -> None:
        """Hand out nothing further: the next consumer processes what waits."""
        self._closed = True
        self._items.clear()
        self._changed.set()

    @abstractmethod
    def _offset_of(self, item: T) -> CommittedOffset: ...

    @abstractmethod
    def _next(self) -> Sequence[Taken]:
        """Take what may go on now."""


class LargeRecords(Waiting[Fetched, Fetched]):
    """Large records, of which a few are taken at a time."""

    @override
    def _offset_of(self, item: Fetched) -> CommittedOffset:
        return item.in_flight.committed_offset

    @override
    def _next(self) -> Sequence[Fetched]:
        taken: list[Fetched] = []
        passed: list[Fetched] = []
        room = _TAKEN_BYTES
        while self._items and (not taken or size_bytes(self._items[0].in_flight) <= room):
            fetched = self._items.popleft()
            if self._offset_of(fetched).topic in self.paused:
                passed.append(fetched)
            else:
                taken.append(fetched)
                room -= size_bytes(fetched.in_flight)
        self._items.extendleft(reversed(passed))
        return taken


class WaitingRequests(Waiting[Sized, Request]):
    """Decoded requests, until their topic has room for them."""

    def __init__(self, holdings: Holdings) -> None:
        super().__init__()
        self._holdings = holdings

    def admit(self, sized: Sequence[Sized]) -> list[Request]:
        """The requests that may go on at once; the others wait."""
        if not sized:
            return []
        if self._items:
            self.put(sized)
            return []
        requests = self._holdings.admit(sized)
        if len(requests) < len(sized):
            gone = set(requests)
            self.put([each for each in sized if each[0] not in gone])
        return requests

    @override
    def _offset_of(self, item: Sized) -> CommittedOffset:
        return record_of(item[0]).committed_offset

    @override
    def _next(self) -> Sequence[Request]:
        live = [each for each in self._items if self._offset_of(each).topic not in self.paused]
        taken = self._holdings.admit(live) if live else []
        if taken:
            gone = set(taken)
            self._items = deque(each for each in self._items if each[0] not in gone)
        return taken


def size_bytes(in_flight: InFlightRecord) -> int:
    """Bytes of a record's value."""
    return len(in_flight.value or b"")
