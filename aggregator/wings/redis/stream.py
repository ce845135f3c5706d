"""Read one stream: claim entries while the model servers have room, and take over those of silent aggregators."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any

from aggregator.admission.ledger import Intake
from aggregator.request.request import Request
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.wire.encode import answer_bytes, made_bytes
from aggregator.sources.wire.turns import slices
from aggregator.sources.wire.values import LARGE_BYTES, MAX_BYTES
from aggregator.wings.redis.codec import (
    MAX_OTHER_BYTES,
    REDIS,
    Command,
    Entry,
    EntryAnswer,
    StreamIntake,
    decode_entry,
    origin_of,
    refused_for_room,
    size_bytes,
)
from aggregator.wings.redis.connection import TRANSIENT, Server, create_group
from aggregator.wings.redis.scripts import CLAIM, LEAVE, TAKE_OVER

_LIMITS = (128, MAX_BYTES, MAX_OTHER_BYTES, 1024 * 1024)
"""Entries, bytes of a value, of an entry's other fields and of all, of one claim.

Redis serves nobody else for half a millisecond.
"""
_WAIT_S, _RETRY_S = 1.0, 0.5  # a drain waits for the end of a blocking read


@dataclass(eq=False)
class RequestStream:
    """The entries of one stream that this consumer of the group has claimed, and the next ones.

    `room`: tokens that may be claimed; `known`: whether a model is configured; `refuse` writes answers.
    `asked`: the models of its requests. `outranked`: the last of them are less urgent than those that name no class.
    `waiting`: entries that nobody has claimed. `claimed`: the bytes of each entry and, once it is admitted, of its
    reply, which are counted in `intake_bytes`. `dimensions`: of a model's vectors.
    """

    server: Server
    intake: StreamIntake
    idle_s: float
    _: KW_ONLY
    room: Callable[[], int]
    intake_bytes: Intake
    dimensions: Callable[[str], int]
    known: Callable[[str], bool]
    refuse: Callable[[Sequence[EntryAnswer]], Awaitable[None]]
    clock: Callable[[], float]
    asked: set[str] = field(default_factory=set)
    claimed: dict[bytes, int] = field(default_factory=dict)
    outranked: bool = False
    paused: bool = False
    waiting: int = 0
    _cursor: bytes = b"0-0"
    _take_over_s: float = -inf
    _redis_minus_here_s: float = 0.0
    _stopped: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _held_bytes: int = 0
    _admitted: set[bytes] = field(default_factory=set)
    _decoded: deque[tuple[Request, int]] = field(default_factory=deque)

    @property
    def _place(self) -> str:
        return f"{REDIS}:{self.intake.stream}"

    def release(self, entry_id: bytes) -> None:
        """An entry is acknowledged: nothing of it is held any more."""
        self._charge(-self.claimed.pop(entry_id, 0))
        self._admitted.discard(entry_id)
        self._changed.set()

    def change(self, *, stop: bool = False) -> None:
        self._stopped = self._stopped or stop
        self._changed.set()

    async def receive(self) -> Sequence[Request]:
        while not self._stopped:
            self._changed.clear()
            if self._decoded:
                if admitted := self._admit():
                    return admitted
                await self._wait(_WAIT_S)
                continue
            try:
                entries = await self._next()
            except TRANSIENT as error:
                await self._mend(error)
                continue
            decoded = await self._decode_entries(entries)
            if refused := [each for each in decoded if isinstance(each, EntryAnswer)]:
                await self.refuse(refused)
            requests = [each for each in decoded if isinstance(each, Request)]
            self.asked |= {request.model for request in requests if self.known(request.model)}
            if requests:
                self.outranked = max(request.priority for request in requests) > self.intake.defaults.priority
            await self._take_on(requests)
        return ()

    async def _take_on(self, requests: Sequence[Request]) -> None:
        """Refuse the requests that could never be held with their replies; the others are admitted as there is room."""
        refused: list[EntryAnswer] = []
        for request in requests:
            entry = origin_of(request).entry
            added = made_bytes(request) + max(0, request.text_bytes - entry.value_bytes)
            added += answer_bytes(request, self.dimensions(request.model), as_json=origin_of(request).as_json)
            needed, largest = self.claimed[entry.entry_id] + added, self.intake_bytes.largest
            if needed > largest:
                refused.append(refused_for_room(request, needed, largest))
            else:
                self._decoded.append((request, added))
        if refused:
            await self.refuse(refused)

    def _admit(self) -> list[Request]:
        """The next requests that there is room for; one always goes where none is on its way."""
        admitted: list[Request] = []
        while self._decoded:
            request, added = self._decoded[0]
            if added > self.intake_bytes.room(self._place) and self._admitted:
                break
            entry_id = origin_of(request).entry.entry_id
            self.claimed[entry_id] += added
            self._admitted.add(entry_id)
            self._charge(added)
            admitted.append(self._decoded.popleft()[0])
        return admitted

    def _charge(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self.intake_bytes.hold(self._place, self._held_bytes)

    def heartbeat(self) -> list[Command]:
        """Commands that keep the claims of this consumer and, the last two, measure the backlog."""
        ids, stream = list(self.claimed), self.intake.stream
        held: list[Command] = [
            ("XCLAIM", *self.intake.place, 0, *ids[at : at + 1000], "JUSTID") for at in range(0, len(ids), 1000)
        ]
        return [*held, ("XPENDING", stream, self.intake.group_id), ("XLEN", stream)]

    async def leave(self) -> None:
        """Let others take over at once all entries still claimed here, also by a claim whose answer was lost.

        Raises any of TRANSIENT.
        """
        await self.server.evaluate(LEAVE, *self.intake.place, int(self.idle_s * 1000) + 1)

    async def _next(self) -> list[Entry]:
        """Entries to decode; none after a while."""
        if self.clock() >= self._take_over_s and (taken := await self._take_over()):
            return taken
        room = 0 if self.paused or self.intake_bytes.is_full(self._place) else self.room()
        if room <= 0:
            await self._wait(_WAIT_S)
            return []
        now_s, last, found = await self.server.evaluate(CLAIM, *self.intake.place, *_LIMITS, room)
        self._redis_minus_here_s = float(now_s) - self.clock()
        self.server.worked(f"read {self.intake.stream}")
        if not found and not self._stopped:
            await self.server.wait_for_entry(self.intake.stream, last, _WAIT_S)
        return self._hold(found)

    async def _take_over(self) -> list[Entry]:
        """Entries whose aggregator went silent, and those of which Redis's answer to a claim was lost."""
        limits = (*_LIMITS, int(self.idle_s * 1000), self._cursor)
        self._cursor, found = await self.server.evaluate(TAKE_OVER, *self.intake.place, *limits)
        entries = self._hold(found)
        if not entries and self._cursor == b"0-0":
            self._take_over_s = self.clock() + self.idle_s / 10
        for _ in entries:
            self.server.count("taken_over")
        return entries

    def _hold(self, found: Sequence[Any]) -> list[Entry]:
        """Entries as a script returns them, without entries held already."""
        fresh = [(entry_id, parts) for entry_id, parts in found if entry_id not in self.claimed]
        sizes = {entry_id: size_bytes(parts) for entry_id, parts in fresh}
        self.claimed |= sizes
        self._charge(sum(sizes.values()))
        return [Entry(self.intake, entry_id, dict(zip(each[::2], each[1::2], strict=True))) for entry_id, each in fresh]

    async def _decode_entries(self, entries: Sequence[Entry]) -> list[Request | EntryAnswer]:
        """In their order; large ones on a thread, and others have their turn between small ones."""
        now_s = self.clock()
        decode = partial(decode_entry, received_s=now_s, wall_s=now_s + self._redis_minus_here_s)
        decoded: list[Request | EntryAnswer] = []
        for some in slices(entries, attrgetter("value_bytes")):
            if some[0].value_bytes >= LARGE_BYTES:
                decoded.append(await in_slow_lane(partial(decode, some[0])))
                continue
            if decoded:
                await asyncio.sleep(0)
            decoded += map(decode, some)
        return decoded

    async def _mend(self, error: Exception) -> None:
        """Wait; make the group again if its stream was deleted."""
        if self.server.failed(f"read {self.intake.stream}", error) == "no_group":
            with contextlib.suppress(*TRANSIENT):  # the next read fails with it too
                await create_group(self.server.client, self.intake.stream, self.intake.group_id)
        await self._wait(_RETRY_S)

    async def _wait(self, most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._stopped else most_s):
                await self._changed.wait()
