"""Batches of tenants over the store: plan, see, end. Every step may be done twice, by anyone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from aggregator.errors import Code, TokenbatchError
from aggregator.slow_lane import in_slow_lane
from aggregator.wings.batches.answers import End, Lines, lost_part
from aggregator.wings.batches.kept import Kept
from aggregator.wings.batches.lines import MALFORMED, lines_with_ids
from aggregator.wings.batches.metrics import BatchMetrics
from aggregator.wings.batches.objects import (
    HEAD_BYTES,
    LONGEST_WINDOW_S,
    WRITTEN,
    Batch,
    Cancel,
    FileMeta,
    Head,
    Plan,
    Pointer,
    Problem,
    Refusal,
    Result,
    batch_path,
    created_since,
    data_path,
    head_of,
    meta_path,
    part_path,
)
from aggregator.wings.batches.settings import BatchesSettings
from aggregator.wings.batches.store import ObjectGone, Store, StoreAway
from aggregator.wings.batches.validation import validated
from aggregator.wings.batches.views import Seen, Status

_LOG = logging.getLogger(__name__)
_KEPT_BYTES = 16 * 1024 * 1024
_READ_AT_ONCE = 16
_SLICE = 512
"""Names that are looked at, or records that are made, in one turn of the event loop: it takes about a millisecond."""
_REMIND_S = 15.0
"""A batch that nobody validates for so long lost its record: its aggregator died between store and broker."""
_SPARE_S = 86400.0
"""Beyond the longest window: by then whatever ends a batch that has expired has done so."""
_END_AFTER_S = 4.0
"""After a cancellation: until then an aggregator that computes a chunk has written what it has."""

T = TypeVar("T")
Produce = Callable[[Sequence[Pointer]], Awaitable[None]]


class QuotaReached(TokenbatchError):
    """The tenant keeps as much as it may."""

    code = Code.RESOURCE_EXHAUSTED


async def in_turns(things: Iterable[T]) -> AsyncIterator[T]:
    """Each of them; after some of them others have their turn."""
    for place, each in enumerate(things, 1):
        yield each
        if not place % _SLICE:
            await asyncio.sleep(0)


async def gathered(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results, of as many at once as are read at once."""
    left, found = iter(work), list[T]()
    while some := tuple(islice(left, _READ_AT_ONCE)):
        found += await asyncio.gather(*some)
    return found


def _decoded(path: str, data: bytes, kind: type[T]) -> T:
    """Raises StoreAway: an object is whole where the store keeps its promises."""
    try:
        return cast("T", head_of(data)) if kind is Head else msgspec.json.decode(data, type=kind)
    except MALFORMED as error:
        raise StoreAway(f"the object store has an object that cannot be read: {path}") from error


class Batches:
    """`produce` writes records; `folder` is a tenant's."""

    def __init__(
        self,
        store: Store,
        settings: BatchesSettings,
        produce: Produce,
        metrics: BatchMetrics,
        *,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.store = store
        self.settings = settings
        self.now_s = wall_clock
        self.metrics = metrics
        self._produce = produce
        self._sleep = sleep
        self.kept = Kept(_KEPT_BYTES)
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._creating = WeakValueDictionary[str, asyncio.Lock]()
        self._reminded_s: dict[str, float] = {}

    # Objects, which never change, are kept once they are read.

    async def load(self, path: str, kind: type[T]) -> T | None:
        """An object of the store; None where there is none. Raises StoreAway, also for one that cannot be read."""
        if (kept := self.kept.get(path)) is not None:
            return cast("T", kept)
        async with self._reading:
            if kind is Head:
                data = await self.store.read_slice(path, 0, HEAD_BYTES)
                found: Any = _decoded(path, data, Head) if data else None
            else:
                data = await self.store.read(path)
                found = _decoded(path, data, kind) if data is not None else None
        if data is not None:
            self.kept.keep(path, found, len(data))
        return found  # type: ignore[no-any-return]

    async def _create(self, path: str, written: msgspec.Struct) -> bool:
        return await self.store.create(path, msgspec.json.encode(written))

    # Batches.

    async def create(self, folder: str, batch: Batch) -> Seen:
        """Begin a batch. Raises QuotaReached."""
        async with self._creating.setdefault(folder, asyncio.Lock()):
            unfinished = len(await self._unfinished(folder))
            if unfinished >= (most := self.settings.max_unfinished):
                message = f"{unfinished} of your batches are not finished, of {most}: wait for one, or cancel one"
                raise QuotaReached(message)
            await self._create(batch_path(folder, batch.id, "batch"), batch)
        self._spawn(f"begin {batch.id}", self._write_record(folder, batch.id))
        return Seen(batch)

    async def _write_record(self, folder: str, batch_id: str) -> None:
        """Have a batch validated. Nobody waits for it: what is in the store begins, however long the broker is away."""
        try:
            await self._produce([Pointer(folder, batch_id)])
        except Exception as error:  # noqa: BLE001 - whatever it is, the next one who looks at the batch tries again
            _LOG.warning("a batch cannot begin now", extra={"batch": batch_id, "error": repr(error)})

    async def _names(self, folder: str, after: str | None = None) -> dict[str, set[str]]:
        """The names of the objects of each of a tenant's batches behind a path, the newest first."""
        names: dict[str, set[str]] = {}
        async for each in in_turns(await self.store.list(f"{folder}/batches", after)):
            _, _, _, batch_id, name = each.path.split("/", 4)
            names.setdefault(batch_id, set()).add(name)
        return dict(sorted(names.items(), reverse=True))

    async def _names_of(self, folder: str, batch_id: str) -> set[str]:
        """Those of one batch."""
        at = batch_path(folder, batch_id, "")
        return {each.path.removeprefix(at) async for each in in_turns(await self.store.list(at.rstrip("/")))}

    async def _unfinished(self, folder: str) -> list[Seen]:
        """Those that are not; older ones than a window and a day have expired, and are not even listed."""
        names = await self._names(folder, created_since(folder, self.now_s() - LONGEST_WINDOW_S - _SPARE_S))
        found = (self._see(folder, each, there) for each, there in names.items() if not there & {"result", "errors"})
        return [seen for seen in await gathered(found) if seen is not None and not seen.status.is_final]

    async def all_seen(self, folder: str, after: str = "", most: int | None = None) -> tuple[list[Seen], bool]:
        """A tenant's batches behind the one with the id `after`, the newest first; and whether there are more."""
        names = await self._names(folder)
        ids = [*names]
        begin = ids.index(after) + 1 if after in names else 0
        page = ids[begin:] if most is None else ids[begin : begin + most]
        found = await gathered(self._see(folder, each, names[each]) for each in page)
        return [seen for seen in found if seen is not None], begin + len(page) < len(ids)

    async def seen(self, folder: str, batch_id: str) -> Seen | None:
        """A batch; None where there is none. Puts right what a crash left behind."""
        return await self._see(folder, batch_id, await self._names_of(folder, batch_id))

    async def _heads(self, folder: str, batch_id: str, names: Collection[str]) -> dict[int, Head]:
        """Of the parts among these names, by their chunk."""
        heads: dict[int, Head] = {}
        unread: list[str] = []
        async for name in in_turns(names):
            if not name.startswith("parts/"):
                continue
            head = self.kept.get(batch_path(folder, batch_id, name))
            if head is None:
                unread.append(name)
            else:
                heads[int(name[6:])] = cast("Head", head)
        found = await gathered(self.load(batch_path(folder, batch_id, name), Head) for name in unread)
        async for name, head in in_turns(zip(unread, found, strict=True)):
            if head is not None:
                heads[int(name[6:])] = head
        return heads

    async def _see(self, folder: str, batch_id: str, names: set[str]) -> Seen | None:
        async def load(name: str, kind: type[T]) -> T | None:
            return await self.load(batch_path(folder, batch_id, name), kind) if name in names else None

        batch = await load("batch", Batch)
        if batch is None:
            return None
        result = await load("result", Result)
        seen = Seen(
            batch,
            await load("plan", Plan),
            await load("errors", Refusal),
            await load("cancel", Cancel),
            await self._heads(folder, batch_id, names) if result is None else {},
            result,
            frozenset(kind for kind in WRITTEN if f"{kind}.gone" in names),
        )
        if 0 < seen.outputs_expire_s <= self.now_s():
            seen = replace(seen, gone=frozenset(WRITTEN))
        await self._put_right(folder, seen, names)
        return seen

    async def _put_right(self, folder: str, seen: Seen, names: Collection[str]) -> None:
        """Note a result that nobody noted, end what is to end, and remind of what nobody began.

        Parts that nobody can read any more go. `names`: of the batch's objects.
        """
        batch_id, now_s = seen.batch.id, self.now_s()
        if seen.status.is_final:
            if seen.result is None and seen.plan is not None and seen.is_whole:
                heads = tuple(seen.heads[chunk] for chunk in range(len(seen.plan.chunks)))
                if await self._create(batch_path(folder, batch_id, "result"), Result(heads)):
                    self.metrics.ended.add(1, seen.status)
            elif any(each.startswith("parts/") for each in names) and not any(map(seen.size_bytes, WRITTEN)):
                self._spawn(f"delete {batch_id}", self._delete_parts(folder, seen))
        elif seen.cancel is not None:
            wait_s = max(0.0, seen.cancel.at_s + _END_AFTER_S - now_s)
            self._spawn(f"end {batch_id}", self._end(folder, seen.batch, End.CANCELLED, wait_s))
        elif now_s > seen.batch.expires_s:
            self._spawn(f"end {batch_id}", self._end(folder, seen.batch, End.EXPIRED, _END_AFTER_S))
        elif seen.plan is None and now_s > _REMIND_S + max(seen.batch.created_s, self._reminded_s.get(batch_id, -inf)):
            recent = {each: at_s for each, at_s in self._reminded_s.items() if now_s <= at_s + _REMIND_S}
            self._reminded_s = {**recent, batch_id: now_s}
            self._spawn(f"begin {batch_id}", self._write_record(folder, batch_id))

    async def _delete_parts(self, folder: str, seen: Seen) -> None:
        """Nobody can read them any more; the result has their counts."""
        try:
            for kind in seen.gone:
                await self.store.create(batch_path(folder, seen.batch.id, f"{kind}.gone"), b"")
            if seen.result is not None:
                paths = [part_path(folder, seen.batch.id, each) for each in range(len(seen.result.heads))]
                await self.store.delete(paths)
        except StoreAway as error:  # the next one who looks at the batch goes on
            _LOG.warning("a part cannot be deleted now", extra={"batch": seen.batch.id, "error": repr(error.__cause__)})

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run it in a task, unless one of that name runs."""
        if name in self._tasks:
            work.close()
            return
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def cancel(self, folder: str, batch_id: str) -> Seen | None:
        """Cancel a batch that is not finished; None where there is none."""
        seen = await self.seen(folder, batch_id)
        if seen is None or seen.status.is_final:
            return seen
        await self._create(batch_path(folder, batch_id, "cancel"), Cancel(self.now_s()))
        return await self.seen(folder, batch_id)

    async def is_cancelled(self, folder: str, batch_id: str) -> bool:
        return await self.load(batch_path(folder, batch_id, "cancel"), Cancel) is not None

    async def _end(self, folder: str, batch: Batch, why: End, wait_s: float) -> None:
        """Write each missing part as ended. A part is written once: if another aggregator wrote it, that one counts."""
        try:
            await self._sleep(wait_s)
            path = batch_path(folder, batch.id, "plan")
            if await self.load(path, Plan) is None:  # its file is not read for this: no line of it was begun
                await self._create(path, Plan(self.now_s(), "", ()))
            plan = await self.plan(folder, batch)
            if plan is None:
                return
            for chunk in range(len(plan.chunks)):
                path = part_path(folder, batch.id, chunk)
                if path not in self.kept and not await self.store.exists(path):
                    await self.write_part(path, await self._ended(folder, batch, plan, chunk, why))
            await self.seen(folder, batch.id)
        except StoreAway as error:  # the next one who looks at the batch goes on
            _LOG.warning("a batch cannot be ended now", extra={"batch": batch.id, "error": repr(error.__cause__)})

    async def _ended(self, folder: str, batch: Batch, plan: Plan, chunk: int, why: End) -> bytes:
        """The part of a chunk that nobody computes. Raises StoreAway."""
        try:
            lines = await self.lines(folder, batch, plan, chunk)
        except ObjectGone:
            return lost_part(plan.chunks[chunk].lines, why, self.now_s())
        lines.end_all(why)
        return lines.part(self.now_s())

    async def lines(self, folder: str, batch: Batch, plan: Plan, chunk: int) -> Lines:
        """The lines of a chunk without answers. Raises ObjectGone or StoreAway."""
        cut = plan.chunks[chunk]
        data = await self.store.read_slice(data_path(folder, batch.input_file_id), cut.start, cut.length)

        def read() -> Lines:
            return Lines(batch.id, chunk, lines_with_ids(data, cut.lines)[1])

        return await in_slow_lane(read)

    # Validation.

    async def plan(self, folder: str, batch: Batch) -> Plan | None:
        """The plan of a batch, made if there is none; None for a file that is refused. Raises StoreAway."""
        at = partial(batch_path, folder, batch.id)
        found = await self.load(at("plan"), Plan)
        if found is not None or await self.load(at("errors"), Refusal) is not None:
            return found
        meta = await self.load(meta_path(folder, batch.input_file_id), FileMeta)  # it may have expired since
        made = await validated(
            self.store,
            self.settings,
            folder,
            batch,
            meta,
            is_planned=lambda: self.store.exists(at("plan")),
            now_s=self.now_s,
            sleep=self._sleep,
        )
        if made is None:
            return await self.load(at("plan"), Plan)
        if isinstance(made, Plan):
            made = await self._within_quota(folder, batch, made)
        if isinstance(made, Plan):
            await self._create(at("plan"), made)
        elif await self._create(at("errors"), Refusal(self.now_s(), made)):
            self.metrics.ended.add(1, Status.FAILED)
        return await self.load(at("plan"), Plan)

    async def _within_quota(self, folder: str, batch: Batch, plan: Plan) -> Plan | tuple[Problem, ...]:
        """The plan, unless the tenant's batches would have too many lines with it. Raises StoreAway."""
        others = [seen.plan for seen in await self._unfinished(folder) if seen.batch.id != batch.id]
        waiting, most = sum(each.lines for each in others if each is not None), self.settings.max_unfinished_lines
        if waiting + plan.lines <= most:
            return plan
        message = (
            f"Enqueued request limit reached. Limit: {most} enqueued requests, of which {waiting} are taken, and this"
            f" batch has {plan.lines}. Please try again once some in_progress batches have been completed."
        )
        return (Problem("request_limit_exceeded", message),)

    async def write_part(self, path: str, part: bytes | bytearray) -> None:
        """Create a part, unless that is there. Raises StoreAway."""
        if await self.store.create(path, part):
            self.metrics.written(head_of(bytes(part[:HEAD_BYTES])))

    async def begin(self, folder: str, batch_id: str) -> None:
        """Validate a batch, and write a record for each chunk without a part. Raises StoreAway."""
        batch = await self.load(batch_path(folder, batch_id, "batch"), Batch)
        plan = await self.plan(folder, batch) if batch is not None else None
        if batch is None or plan is None:
            return
        there, chunks = await self._names_of(folder, batch_id), plan.chunks
        for at in range(0, len(chunks), _SLICE):
            pointers = [
                Pointer(folder, batch_id, chunk, cut.start, cut.length, cut.lines, batch.expires_s, plan.model)
                for chunk, cut in enumerate(chunks[at : at + _SLICE], at)
                if f"parts/{chunk:06d}" not in there
            ]
            await (self._produce(pointers) if pointers else asyncio.sleep(0))

    async def close(self) -> None:
        """Cancel the running tasks; the next request for one of their batches starts its task again."""
        for task in [*self._tasks.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
