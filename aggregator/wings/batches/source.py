"""Batches as a source: a record names a chunk, its lines become background requests, their answers one part.

A part is created once; then the record is complete. So a line is answered exactly once, whoever dies when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count

import msgspec
from typing_extensions import override

from aggregator.errors import Code, TokenbatchError
from aggregator.request.request import Paced, Receive, Request, Source
from aggregator.scheduler.work_item import Priority, Task
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.http.answer import Form
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.offsets import InFlightRecord
from aggregator.wings.batches.answers import End, lost_part
from aggregator.wings.batches.chunk import SLICE_LINES, Chunk, LineReader, answer_all, origin_of, slices
from aggregator.wings.batches.desk import Desk
from aggregator.wings.batches.lines import MALFORMED
from aggregator.wings.batches.objects import Batch, Pointer, batch_path, data_path, part_path
from aggregator.wings.batches.store import ObjectGone, StoreAway
from aggregator.wings.batches.waiting import Taken, Waiting

_LOG = logging.getLogger(__name__)
_OPEN_AT_ONCE = 8
"""Chunks whose lines are in the queue: a crash repeats them, and a cancellation still computes some of them."""
_FETCHED = 256
"""Records that wait for their chunk's turn; batches take turns among them."""
_LOOK_S = 2.0
"""How often an aggregator looks whether a batch was cancelled that it computes."""
_CUT_OFF_S = 3600.0
"""An upload of which nothing came for so long is over; it is looked for as often."""
_RETRY_S = 0.5
_TRIES = 8
"""Of a line whose failure a retry can cure; the pipeline has tried it on other servers before."""
_NUMBER_BYTES, _VECTOR_BYTES = 22, 512
"""At most, of a vector's number as JSON, and of a line beside its numbers."""
_COPIED_BYTES = 256 * 1024
"""Of a part, in one turn of the event loop."""
_BYTES_PER_TOKEN = 4.0
_POINTER = msgspec.json.Decoder(Pointer)


class BatchSource(Source):
    """Reads the records of chunks in the consumer group; it pauses where others are refused."""

    name = "batches"
    refusable = False

    def __init__(
        self,
        desk: Desk,
        consumer: KafkaConsumer,
        forms: Mapping[str, Form],
        *,
        default_model: str,
        dimensions: Callable[[str], int],
        forget: Callable[[Callable[[Request], bool]], None],
        name_of: Callable[[str], str] = lambda name: name,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`forms`: of the bodies of lines, by endpoint; `dimensions`: of a model, 0 if not known."""
        self._desk = desk
        self._consumer = consumer
        self._reader = LineReader(self, forms, default_model)
        self._default_model = default_model
        self._dimensions = dimensions
        self._forget = forget
        self._name_of = name_of
        self._clock = clock
        self._topic = desk.settings.topic
        self._waiting = Waiting()
        self._new = Waiting(lambda pointer: pointer.folder)
        self._open: dict[str, Chunk] = {}
        self._reading: Chunk | None = None
        self._again: list[tuple[float, int, Chunk, int]] = []
        self._count = count()
        self._paused: frozenset[str] = frozenset()
        self._asked: set[str] = {default_model}
        self._stopping = False
        self._changed = asyncio.Event()
        self._due = asyncio.Event()
        self._writing: set[asyncio.Task[None]] = set()

    # Records.

    @property
    @override
    def receivers(self) -> Sequence[Receive]:
        return self._receive, self._receive_again

    @override
    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._consumer.run())
            tasks.create_task(self._fetch())
            tasks.create_task(self._begin_batches())
            tasks.create_task(self._watch())
            tasks.create_task(self._sweep())

    async def _fetch(self) -> None:
        """Take records over, while few wait for their turn."""
        while True:
            while len(self._waiting) >= _FETCHED:
                await self._change()
            records = await self._consumer.fetch()
            if not records:
                return
            for record in records:
                try:
                    pointer = _POINTER.decode(record.value or b"")
                except MALFORMED:
                    _LOG.error("a record names no chunk", extra={"topic": record.topic, "offset": record.offset})
                    record.committed_offset.complete(record)
                    continue
                (self._new if pointer.chunk < 0 else self._waiting).put(pointer, record)
            self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _begin_batches(self) -> None:
        """Validate batches, one after another; tenants take turns."""
        while True:
            while (taken := self._new.take(lambda _: True)) is None:
                await self._change()
            pointer, record = taken
            while not record.committed_offset.fenced:
                try:
                    await self._desk.begin(pointer.folder, pointer.batch)
                    record.committed_offset.complete(record)
                    break
                except TokenbatchError as error:
                    _LOG.warning("a batch cannot begin", extra={"batch": pointer.batch, "error": repr(error)})
                    await asyncio.sleep(_RETRY_S)
                except Exception:  # noqa: BLE001 - an unexpected error in one batch must not stop the others
                    _LOG.exception("a batch cannot begin", extra={"batch": pointer.batch})
                    record.committed_offset.complete(record)

    async def _watch(self) -> None:
        """End the chunks of batches that are cancelled; and look whether others left room."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._changed.set()
            with suppress(StoreAway):
                for folder, batch in {(each.pointer.folder, each.pointer.batch) for each in self._open.values()}:
                    if await self._desk.is_cancelled(folder, batch):
                        await self._cancel(batch)

    async def _sweep(self) -> None:
        """Delete what uploads of killed aggregators left."""
        while True:
            with suppress(StoreAway):
                swept = await self._desk.store.sweep(self._desk.now_s() - _CUT_OFF_S)
                if swept:
                    _LOG.info("files of uploads that were cut off are deleted", extra={"files": swept})
            await asyncio.sleep(_CUT_OFF_S)

    async def _cancel(self, batch: str) -> None:
        """Write what there is of its chunks; the lines that wait leave the queue."""
        ended = {each for each in self._open.values() if each.pointer.batch == batch and not each.ended}
        self._forget(lambda request: request.source is self and origin_of(request).chunk in ended)
        for chunk in ended:
            chunk.lines.end_all(End.CANCELLED)
            self._write(chunk)
            await asyncio.sleep(0)

    # Chunks.

    async def _receive(self) -> Sequence[Request]:
        """The requests of the next lines: of the chunk that is being read, or of another one."""
        while self._reading is not None or not self._stopping:
            await asyncio.sleep(0)  # others have their turn
            if self._reading is not None:
                if requests := await self._read(self._reading):
                    return requests
                continue
            taken = self._next()
            if taken is None:
                await self._change()
                continue
            pointer, record = taken
            try:
                self._reading = await self._begin(pointer, record)
            except StoreAway as error:
                _LOG.warning("a chunk cannot be read", extra={"batch": pointer.batch, "error": repr(error.__cause__)})
                self._waiting.put_back(taken)
                await asyncio.sleep(_RETRY_S)
        return ()

    def _next(self) -> Taken | None:
        """The next record whose chunk has room; batches take turns."""
        if len(self._open) >= _OPEN_AT_ONCE or (self._open and self._topic in self._consumer.holdings.full()):
            return None
        taken = self._waiting.take(lambda pointer: (pointer.model or self._default_model) not in self._paused)
        if taken is not None:
            self._changed.set()
        return taken

    async def _begin(self, pointer: Pointer, record: InFlightRecord) -> Chunk | None:
        """A chunk whose lines are to be read; None if it needs none. Raises StoreAway."""
        committed_offset, desk = record.committed_offset, self._desk
        if committed_offset.fenced:
            return None
        path = part_path(pointer.folder, pointer.batch, pointer.chunk)
        batch = await desk.load(batch_path(pointer.folder, pointer.batch, "batch"), Batch)
        if batch is None or path in self._open or await desk.store.exists(path):
            committed_offset.complete(record)  # another one wrote it, and died before its offset was committed
            return None
        why = End.EXPIRED if desk.now_s() >= batch.expires_s else None
        if await desk.is_cancelled(pointer.folder, pointer.batch):
            why = End.CANCELLED
        place = data_path(pointer.folder, batch.input_file_id)
        data = await desk.store.read_slice(place, pointer.start, pointer.length)
        try:
            chunk = await in_slow_lane(partial(self._reader.chunk, pointer, record, batch, data))
        except ObjectGone:
            _LOG.error("the file of a batch is gone", extra={"batch": pointer.batch})
            await desk.write_part(path, lost_part(pointer.lines, why, desk.now_s()))
            committed_offset.complete(record)
            return None
        model = pointer.model or self._default_model
        if self._name_of(model):
            self._asked.add(model)
        if record.committed_offset.fenced:  # meanwhile
            return None
        self._hold(chunk, 2 * pointer.length)
        self._open[chunk.path] = chunk
        if why is not None:
            chunk.lines.end_all(why)
            self._write(chunk)
            return None
        return chunk

    async def _read(self, chunk: Chunk) -> Sequence[Request]:
        """The requests of the next lines of a chunk."""
        places = range(chunk.read, min(chunk.read + SLICE_LINES, len(chunk.raws)))
        chunk.read = places.stop
        requests = await self._requests(chunk, places) if not chunk.ended else ()
        if chunk.ended:  # cancelled, or fenced
            self._reading = None
            return ()
        numbers_bytes = _NUMBER_BYTES * self._dimensions(chunk.pointer.model or self._default_model)
        self._hold(chunk, sum(request.vector_count for request in requests) * (_VECTOR_BYTES + numbers_bytes))
        if not chunk.is_unread:
            self._reading = None
            if not chunk.lines.left:
                self._write(chunk)
        return requests

    @staticmethod
    def _hold(chunk: Chunk, size_bytes: int) -> None:
        chunk.record.held_bytes += size_bytes
        chunk.record.committed_offset.held_bytes += size_bytes

    async def _requests(self, chunk: Chunk, places: Sequence[int]) -> list[Request]:
        return await self._reader.requests(chunk, places, self._clock(), self._desk.now_s())

    async def _receive_again(self) -> Sequence[Request]:
        """The requests of lines that are tried again."""
        while not self._stopping:
            await asyncio.sleep(0)  # others have their turn
            now_s = self._clock()
            requests: list[Request] = []
            while self._again and self._again[0][0] <= now_s and len(requests) < SLICE_LINES:
                _, _, chunk, place = heappop(self._again)
                if not chunk.ended and chunk.lines.is_open(place):
                    requests += await self._requests(chunk, (place,))
                    if not chunk.lines.left:  # it cannot be read any more
                        self._write(chunk)
            if requests:
                return requests
            wait_s = self._again[0][0] - now_s if self._again else _LOOK_S
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._due.wait()
        return ()

    # Answers.

    @override
    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        for some in slices(requests):
            await answer_all([request for request in some if not self._try_again(request)])
            yield some
            for chunk in {origin_of(request).chunk for request in some}:
                if not chunk.lines.left:
                    self._write(chunk)
            await asyncio.sleep(0)  # others have their turn

    def _try_again(self, request: Request) -> bool:
        """Whether the failure of a request may be cured by a retry, which is then due."""
        origin, failure = origin_of(request), request.failure
        if failure is None or not failure.retryable or failure.code is Code.DEADLINE_EXCEEDED:
            return False
        chunk, place = origin.chunk, origin.place
        tries = chunk.tries[place] = chunk.tries.get(place, 0) + 1
        if tries > _TRIES or chunk.ended:
            return False
        due_s = self._clock() + max(failure.retry_after_s, _RETRY_S * 2**tries)
        heappush(self._again, (due_s, next(self._count), chunk, place))
        return True

    def _write(self, chunk: Chunk) -> None:
        """Write its part, in a task of its own: the store may be away for long."""
        if chunk.ended:
            return
        chunk.ended = True
        task = asyncio.create_task(self._write_part(chunk), name=f"write {chunk.path}")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_part(self, chunk: Chunk) -> None:
        """Create its part, unless that is there; then its record is complete."""
        part = bytearray()
        for piece in chunk.lines.pieces(self._desk.now_s()):
            if len(part) // _COPIED_BYTES < (len(part) + len(piece)) // _COPIED_BYTES:
                await asyncio.sleep(0)  # others have their turn
            part += piece
        while not chunk.record.committed_offset.fenced:
            try:
                await self._desk.write_part(chunk.path, part)
                break
            except StoreAway as error:  # nothing is lost, and no offset moves
                _LOG.warning("a part cannot be written", extra={"part": chunk.path, "error": repr(error.__cause__)})
                await asyncio.sleep(_RETRY_S)
        self._close(chunk)

    def _close(self, chunk: Chunk) -> None:
        chunk.ended = True
        self._open.pop(chunk.path, None)
        chunk.record.committed_offset.complete(chunk.record)
        self._changed.set()

    # The life of a source.

    @override
    def pause(self, away: Callable[[str, Task], bool], full: Callable[[str, Priority], bool]) -> None:
        paused = frozenset(
            model
            for model in self._asked
            if all(away(model, task) for task in Task) or full(model, Priority.BACKGROUND)
        )
        if paused != self._paused:
            self._paused = paused
            self._changed.set()

    def revoked(self, records: Sequence[InFlightRecord]) -> Callable[[Request], bool]:
        """Partitions were revoked: returns a test for the requests to forget, as the new owner computes them."""
        gone = frozenset(records)
        self._waiting.drop(gone)
        self._new.drop(gone)
        for chunk in [each for each in self._open.values() if each.record in gone]:
            self._close(chunk)
        return lambda request: request.source is self and origin_of(request).chunk.record in gone

    @override
    def paced(self, model: str) -> Paced:
        """The tokens of the chunks that wait here or are computed, each over the time left in its batch's window.

        Records that are not read yet are taken to be like those that are.
        """
        now_s = self._desk.now_s()
        computed = [chunk for chunk in self._open.values() if self._is_of(chunk.pointer, model)]
        pointers = [*self._waiting, *(chunk.pointer for chunk in self._open.values())]
        own = [each for each in pointers if self._is_of(each, model)]
        rate = sum(each.length / _BYTES_PER_TOKEN / max(1.0, each.expires_s - now_s) for each in own)
        unread = sum(each.lag_records for each in self._consumer.partitions.values())
        held = sum(each.pointer.length * each.lines.left / len(each.raws) for each in computed)
        return Paced(rate * (1.0 + unread / len(pointers)) if pointers else 0.0, held / _BYTES_PER_TOKEN)

    def _is_of(self, pointer: Pointer, model: str) -> bool:
        return self._name_of(pointer.model or self._default_model) == model

    @override
    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        self._consumer.stop_fetching()
        self._changed.set()
        self._due.set()

    @override
    async def delivered(self) -> None:
        while self._writing:
            await asyncio.wait(self._writing)

    @override
    async def close(self, timeout_s: float) -> None:
        await self._desk.close()
        await self._consumer.close(timeout_s)

    @override
    def trouble(self) -> str | None:
        return None if self._consumer.healthy else "Kafka cannot be reached for batches"
