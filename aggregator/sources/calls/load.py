"""Limit the calls, bytes and streams in flight, before tokens are counted, and share them fairly.

Each tenant is held to a share, where a tenant is known. A caller can invent a tenant unless authentication is on, so
then each connection is held to a share as well.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from aggregator.errors import Overloaded
from aggregator.observability.metrics import Limit, Metrics
from aggregator.scheduler.bounds import SharedBound

Holders = tuple[str, ...]
"""Whose shares a call counts against: a tenant, a connection."""

_RETRY_AFTER_S = 0.1  # about the time of a call in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of all listeners together; calls above are refused with RESOURCE_EXHAUSTED, or wait in the client.

    `max_calls`: requests in flight, those on streams included. `max_pending_bytes`: of these requests together.
    `max_streams`: open EmbedStream calls; when one more comes, one that has been silent for 5 s is ended.
    `max_connections`: open connections of each listener. `stream_window`: requests in flight on one stream.
    `max_inputs`: of one request.
    `max_message_bytes`: of one request. `max_metadata_bytes`: of one call. A connection is closed at `connection_age_s`
    (give or take 10 %), so that load spreads over all aggregators again; its calls then have `connection_grace_s`.
    """

    max_calls: int = 4096
    max_connections: int = 4096
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
    Limit.CALLS: "too many requests are in flight: try again later",
    Limit.BYTES: "the requests in flight hold too many bytes: try again later",
    Limit.STREAMS: "too many streams are open: send more on one of yours, or try again later",
    Limit.SHARE_OF_CALLS: "your share of the requests in flight is used up: try again later",
    Limit.SHARE_OF_BYTES: "your share of the bytes in flight is used up: try again later, or send less",
    Limit.SHARE_OF_STREAMS: "your share of the streams is used up: send more on one of yours, or try again later",
    Limit.ARRIVING: "too many messages are being received: try again later",
    Limit.SILENT: "the complete message did not arrive within 5 s: the call is over",
}


class Load:
    """Calls, bytes and streams in flight. `jitter` in [0, 1) spreads the retries of refused calls."""

    def __init__(self, limits: Limits, metrics: Metrics, jitter: Callable[[], float] = random.random) -> None:
        self.limits = limits
        self.calls = SharedBound(limits.max_calls)
        self.bytes = SharedBound(limits.max_pending_bytes)
        self.streams = SharedBound(limits.max_streams)
        self.metrics = metrics
        self._jitter = jitter
        metrics.watch_calls(lambda: (self.calls.total, self.bytes.total, self.streams.total))

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


class Room:
    """The calls and bytes that one request holds, from its arrival until it is answered, refused or cancelled."""

    __slots__ = ("_load", "_work", "holders", "size_bytes")

    def __init__(self, load: Load, holders: Holders) -> None:
        self.holders = holders
        self.size_bytes = 0
        self._work: asyncio.Future[None] | None = None
        self._load = load
        load.calls.take(holders, 1)

    def widen(self, size_bytes: int) -> None:
        """Add to the bytes held. Raises Overloaded if they are not free."""
        self._load.check(self._load.bytes, self.holders, size_bytes, Limit.BYTES, Limit.SHARE_OF_BYTES)
        self.charge(size_bytes)

    def charge(self, size_bytes: int) -> None:
        """Add to the bytes held, whether or not they are free; negative to release."""
        self.size_bytes += size_bytes
        self._load.bytes.take(self.holders, size_bytes)

    def also_count_for(self, holder: str) -> None:
        """Count it against the share of one more holder. Raises Overloaded when that share is used up."""
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
        load.calls.also_count_for(holder, 1)
        load.bytes.also_count_for(holder, self.size_bytes)
        self.holders += (holder,)

    def keep_until(self, work: asyncio.Future[None]) -> None:
        self._work = work

    def leave(self, _: object = None) -> None:
        """Release it all. Can be the callback of a task."""
        work, self._work = self._work, None
        if work is not None and not work.done():
            work.add_done_callback(self.leave)
            return
        self._load.calls.give_back(self.holders, 1)
        self._load.bytes.give_back(self.holders, self.size_bytes)
