"""Bound what calls may hold before their tokens are counted, and how many streams are open; share it fairly.

Whoever takes much leaves room for others: a tenant, where one is known, and where callers can make one up the
connection too, which they cannot.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.admission.bounds import SharedBound
from aggregator.errors import Overloaded
from aggregator.observability.metrics import Limit, Metrics

Holders = tuple[str, ...]
"""Who answers for something: a tenant, a connection."""

_RETRY_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """What one listener takes on; more is refused with RESOURCE_EXHAUSTED, or waits where HTTP/2 has it wait.

    `max_calls`: requests under way, those on streams included. `max_pending_bytes`: of these requests together.
    `max_streams`: open EmbedStream calls, each with room for one message on its way in; when one more comes, one that
    has been silent for 5 s makes way. `stream_window`: requests under way on one of them. `max_inputs`: of one request.
    `max_message_bytes`: of one request. `max_metadata_bytes`: of one call. A connection is closed at `connection_age_s`
    (give or take 10 %), so that load spreads anew over the aggregators; its calls then have `connection_grace_s`.
    """

    max_calls: int = 4096
    max_pending_bytes: int = 64 * 1024 * 1024
    max_streams: int = 48
    stream_window: int = 256
    max_inputs: int = 1024
    max_calls_per_connection: int = 1024
    max_message_bytes: int = 4 * 1024 * 1024
    max_metadata_bytes: int = 16 * 1024
    connection_age_s: float = 1800.0
    connection_grace_s: float = 300.0


_WORDS = {
    Limit.CALLS: "too many requests are under way: try again later",
    Limit.BYTES: "the requests under way hold too many bytes: try again later",
    Limit.STREAMS: "too many streams are open: use one of yours for more, or try again later",
    Limit.SHARE_OF_CALLS: "your share of the requests under way is used up: try again later",
    Limit.SHARE_OF_BYTES: "your share of the bytes under way is used up: try again later, or send less",
    Limit.SHARE_OF_STREAMS: "your share of the streams is open: use one of yours for more, or try again later",
    Limit.ARRIVING: "too many messages are on their way in: try again later",
    Limit.SILENT: "the whole message did not come within 5 s: the call is over",
}


class Load:
    """What is under way. `jitter` in [0, 1) spreads the retries of those that are refused."""

    def __init__(self, limits: Limits, metrics: Metrics, jitter: Callable[[], float] = random.random) -> None:
        self.calls = SharedBound(limits.max_calls)
        self.bytes = SharedBound(limits.max_pending_bytes)
        self.streams = SharedBound(limits.max_streams)
        self._metrics = metrics
        self._jitter = jitter
        metrics.watch_calls(lambda: (self.calls.total, self.bytes.total, self.streams.total))

    def enter(self, holders: Holders) -> Room:
        """A request comes; raises Overloaded when there is no room for it."""
        self.check(self.calls, holders, 1, Limit.CALLS, Limit.SHARE_OF_CALLS)
        return Room(self, holders)

    def open_stream(self, holders: Holders) -> None:
        """A stream opens; raises Overloaded when there are enough."""
        self.check(self.streams, holders, 1, Limit.STREAMS, Limit.SHARE_OF_STREAMS)
        self.streams.take(holders, 1)

    def close_stream(self, holders: Holders) -> None:
        """It has ended."""
        self.streams.give_back(holders, 1)

    def check(self, bound: SharedBound, holders: Holders, amount: int, limit: Limit, share: Limit) -> None:
        """Raises Overloaded when so much more fits neither the bound nor the share of each of them."""
        if not bound.has_room(amount):
            raise self.refusal(limit)
        if not bound.fits_share(holders, amount):
            raise self.refusal(share)

    def refusal(self, limit: Limit) -> Overloaded:
        """What the caller is told whom that limit refuses."""
        self._metrics.call_refused(limit)
        return Overloaded(_WORDS[limit], _RETRY_AFTER_S * (1.0 + self._jitter()))


class Room:
    """What one request takes, from its coming until it is answered, refused or given up."""

    __slots__ = ("_load", "_work", "holders", "size_bytes")

    def __init__(self, load: Load, holders: Holders) -> None:
        self.holders = holders
        self.size_bytes = 0
        self._work: asyncio.Future[None] | None = None
        self._load = load
        load.calls.take(holders, 1)

    def widen(self, size_bytes: int) -> None:
        """It needs so many bytes more; raises Overloaded when they are not free."""
        self._load.check(self._load.bytes, self.holders, size_bytes, Limit.BYTES, Limit.SHARE_OF_BYTES)
        self.charge(size_bytes)

    def charge(self, size_bytes: int) -> None:
        """It has so many bytes more, or less, whether or not they are free."""
        self.size_bytes += size_bytes
        self._load.bytes.take(self.holders, size_bytes)

    def put_down_to(self, holder: str) -> None:
        """One more is found to answer for it; raises Overloaded when that one's share is used up by others."""
        load = self._load
        for bound, amount, limit in (
            (load.calls, 1, Limit.SHARE_OF_CALLS),
            (load.bytes, self.size_bytes, Limit.SHARE_OF_BYTES),
        ):
            bound.give_back(self.holders, amount)
            fits = bound.fits_share((holder,), amount)
            bound.take(self.holders, amount)
            if not fits:
                raise load.refusal(limit)
        load.calls.put_down_to(holder, 1)
        load.bytes.put_down_to(holder, self.size_bytes)
        self.holders += (holder,)

    def keep_until(self, work: asyncio.Future[None]) -> None:
        """It leaves no sooner than that ends."""
        self._work = work

    def leave(self, _: object = None) -> None:
        """Nothing is held for it any more; a task's callback, if need be."""
        work, self._work = self._work, None
        if work is not None and not work.done():
            work.add_done_callback(self.leave)
            return
        self._load.calls.give_back(self.holders, 1)
        self._load.bytes.give_back(self.holders, self.size_bytes)
