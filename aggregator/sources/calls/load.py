"""Limit the calls, bytes and streams in flight, and share them fairly. The bytes are the callers' part of the ledger.

Each tenant is held to a share, where a tenant is known. A caller can invent a tenant unless authentication is on, so
then each connection and each address is held to a share as well.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from typing_extensions import override

from aggregator.admission.bounds import SharedBound
from aggregator.admission.ledger import MEMORY_BYTES, Holders, Ledger, LedgerFull, Reached, Reservation
from aggregator.errors import NeverFits, Overloaded
from aggregator.observability.metrics import Limit, Metrics
from aggregator.request.request import MAX_INPUTS

_RESERVE = 16  # a sixteenth of calls and streams is for holders that have none
_RETRY_AFTER_S = 0.1  # about the time of a call in flight
_TICK_S = 0.01  # no message is infinitely fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of all listeners together; calls above are refused with RESOURCE_EXHAUSTED, or wait in the client.

    `max_calls`: requests in flight, those on streams included.
    `max_streams`: open EmbedStream calls; when one more comes, one that has been silent for 5 s is ended.
    `max_connections`: open connections of each listener. `stream_window`: requests in flight on one stream.
    `max_inputs`: of one request. `max_calls_per_connection`: as nginx has it; RFC 9113 recommends at least 100.
    `max_message_bytes`: of one request. `max_metadata_bytes`: of one call. A connection is closed at `connection_age_s`
    (give or take 10 %), so that load spreads over all aggregators again; its calls then have `connection_grace_s`.
    """

    max_calls: int = 4096
    max_connections: int = 4096
    max_streams: int = 48
    stream_window: int = 256
    max_inputs: int = MAX_INPUTS
    max_calls_per_connection: int = 128
    max_message_bytes: int = 4 * 1024 * 1024
    max_metadata_bytes: int = 16 * 1024
    connection_age_s: float = 1800.0
    connection_grace_s: float = 300.0


_WORDS = {
    Limit.CALLS: "too many requests are in flight: try again later",
    Limit.BYTES: "the requests in flight hold too many bytes: try again later",
    Limit.STREAMS: "too many streams are open: send more on one of yours, or try again later",
    Limit.SHARE_OF_CALLS: "your share of the requests in flight is used up: try again later",
    Limit.SHARE_OF_BYTES: "your share of the bytes in flight is used up: try again later, or send less",
    Limit.SHARE_OF_STREAMS: "your share of the streams is used up: send more on one of yours, or try again later",
    Limit.ARRIVING: "too many messages are being received: try again later",
    Limit.SLOW: "the requests in flight hold too many bytes, and this message arrives slowest: try again later",
    Limit.SILENT: "the complete message did not arrive within 5 s: the call is over",
}


class Load:
    """Calls, bytes and streams in flight. `jitter` in [0, 1) spreads the retries of refused calls."""

    def __init__(
        self,
        limits: Limits,
        metrics: Metrics,
        jitter: Callable[[], float] = random.random,
        *,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.ledger = ledger or Ledger(MEMORY_BYTES, intake_share=0.0)
        self.calls = SharedBound(limits.max_calls, limits.max_calls // _RESERVE)
        self.streams = SharedBound(limits.max_streams, limits.max_streams // _RESERVE)
        self.metrics = metrics
        self._jitter = jitter
        self._clock = clock
        self._arriving: dict[Room, tuple[float, Callable[[Overloaded], None]]] = {}
        metrics.watch_calls(lambda: (self.calls.total, self.ledger.callers.total, self.streams.total))

    def enter(self, holders: Holders) -> Room:
        """Count a request in. Raises Overloaded without room for it."""
        self.check(self.calls, holders, 1, Limit.CALLS, Limit.SHARE_OF_CALLS)
        return Room(self, holders)

    def open_stream(self, holders: Holders) -> None:
        """Count a stream in. Raises Overloaded when there are too many."""
        self.check(self.streams, holders, 1, Limit.STREAMS, Limit.SHARE_OF_STREAMS)
        self.streams.take(holders, 1)

    def close_stream(self, holders: Holders) -> None:
        self.streams.give_back(holders, 1)

    def check(self, bound: SharedBound, holders: Holders, amount: int, limit: Limit, share: Limit) -> None:
        """Raises Overloaded when `amount` more does not fit the bound, or the share of one of the holders."""
        if not bound.has_room(amount):
            raise self.refusal(limit)
        if not bound.fits_share(holders, amount):
            raise self.refusal(share)

    def arrives(self, room: Room, end: Callable[[Overloaded], None]) -> None:
        """A request's message begins to arrive; `end` ends it, and drops what came, where others need the room."""
        self._arriving[room] = self._clock(), end

    def arrived(self, room: Room) -> None:
        """It is there, or its call is over."""
        self._arriving.pop(room, None)

    def make_room(self, room: Room) -> bool:
        """End the message that arrives slowest, if that is not the one of `room`; False: there is none."""
        now_s = self._clock()
        slowest = min(
            (each for each in self._arriving if each.size_bytes),
            key=lambda each: each.size_bytes / max(_TICK_S, now_s - self._arriving[each][0]),
            default=room,
        )
        if slowest is room:
            return False
        _, end = self._arriving.pop(slowest)
        end(self.refusal(Limit.SLOW))
        return True

    def refusal(self, limit: Limit) -> Overloaded:
        self.metrics.calls_refused.add(1, limit)
        return Overloaded(_WORDS[limit], _RETRY_AFTER_S * (1.0 + self._jitter()))


class RateLimit:
    """Delays amounts to a rate of `per_s`, in their order. Times are monotonic seconds."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._free_s = -inf

    def wait_s(self, amount: int, now_s: float) -> float:
        """How long this amount, which counts from now on, has to wait."""
        begins_s = max(self._free_s, now_s)
        self._free_s = begins_s + amount / self._per_s
        return begins_s - now_s


class Room(Reservation):
    """The call and the bytes that one request holds, from its arrival until its answer is taken, or it is cancelled."""

    __slots__ = ("_load", "_work")

    def __init__(self, load: Load, holders: Holders) -> None:
        super().__init__(load.ledger, holders)
        self._work: asyncio.Future[None] | None = None
        self._load = load
        load.calls.take(holders, 1)

    def widen(self, size_bytes: int) -> None:
        """Add to the bytes held. Raises Overloaded if they are not free, InvalidRequest if they never are."""
        while True:
            try:
                self.grow(size_bytes)
            except LedgerFull as full:
                if full.reached is Reached.NEVER:
                    raise NeverFits(self.size_bytes + size_bytes, self._load.ledger.largest) from None
                if full.reached is Reached.SHARE:
                    raise self._load.refusal(Limit.SHARE_OF_BYTES) from None
                if not self._load.make_room(self):
                    raise self._load.refusal(Limit.BYTES) from None
            else:
                return

    @override
    def also_count_for(self, holder: str) -> None:
        """Count it against the share of one more holder. Raises Overloaded when that share is used up."""
        load, calls = self._load, self._load.calls
        calls.give_back(self.holders, 1)
        fits = calls.fits_share((holder,), 1)
        calls.take(self.holders, 1)
        if not fits:
            raise load.refusal(Limit.SHARE_OF_CALLS)
        try:
            super().also_count_for(holder)
        except LedgerFull:
            raise load.refusal(Limit.SHARE_OF_BYTES) from None
        calls.also_count_for(holder, 1)

    def arrives(self, end: Callable[[Overloaded], None]) -> None:
        """Its message begins to arrive; `end` ends it where others need the room."""
        self._load.arrives(self, end)

    def arrived(self) -> None:
        """Its message is there."""
        self._load.arrived(self)

    def keep_until(self, work: asyncio.Future[None]) -> None:
        self._work = work

    def leave(self, _: object = None) -> None:
        """Release it all. Can be the callback of a task."""
        load = self._load
        load.arrived(self)
        work, self._work = self._work, None
        if work is not None and not work.done():
            work.add_done_callback(self.leave)
            return
        load.calls.give_back(self.holders, 1)
        self.free()
