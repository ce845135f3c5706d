"""One write at a time to each partition; what comes meanwhile waits in line and goes together in the next.

aiokafka takes one pending batch per partition and lets every further one wait for it, all of them woken at each
change, each of their time-outs shortened every time. So there is never a second one. Order is kept, and
the busier a partition is, the larger its batches become.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from aggregator.sources.kafka.records import OutgoingRecord

BATCH_BYTES = 256 * 1024
_RECORD_OVERHEAD_BYTES = 100

DeliveryResult = Exception | None
"""Of one record: None when the broker acknowledged it, else why it never will."""

Write = Callable[[TopicPartition, Sequence[OutgoingRecord]], Awaitable[list[DeliveryResult]]]


@dataclass(slots=True, eq=False)
class _Share:
    """One sender's records for one partition; `turn` ends its wait, with its results or to write for all in line."""

    records: Sequence[OutgoingRecord]
    size_bytes: int
    turn: asyncio.Future[list[DeliveryResult] | None]


@dataclass(slots=True, eq=False)
class _Line:
    """Who waits for a partition; `busy` while somebody writes."""

    waiting: deque[_Share] = field(default_factory=deque[_Share])
    busy: bool = False


class PartitionLines:
    """The lines of all partitions. `write` writes records to one partition until each has its result."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._lines: dict[TopicPartition, _Line] = {}

    async def send(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> list[DeliveryResult]:
        """The delivery results of `records`, in their order. Raises what `write` raises."""
        line = self._lines.setdefault(tp, _Line())
        share = _Share(records, _total_bytes(records), asyncio.get_running_loop().create_future())
        if line.busy:
            line.waiting.append(share)
            try:
                results = await share.turn
            except asyncio.CancelledError:
                if share.turn.done() and not share.turn.cancelled() and share.turn.result() is None:
                    self._hand_on(tp, line)  # the turn had come already
                raise
            if results is not None:
                return results
        line.busy = True
        return await self._write_for_all(tp, line, share)

    async def _write_for_all(self, tp: TopicPartition, line: _Line, mine: _Share) -> list[DeliveryResult]:
        """Write one's own records and those next in line, as many as fit one batch; then hand the turn on."""
        shares, size_bytes = [mine], mine.size_bytes
        while line.waiting and size_bytes + line.waiting[0].size_bytes <= BATCH_BYTES:
            shares.append(line.waiting.popleft())
            size_bytes += shares[-1].size_bytes
        try:
            records = [record for share in shares for record in share.records] if len(shares) > 1 else mine.records
            if size_bytes <= BATCH_BYTES:
                results = await self._write(tp, records)
            else:
                results = await self._write_in_parts(tp, records)
        except BaseException as error:
            failure = error if isinstance(error, Exception) else asyncio.CancelledError()
            for share in shares[1:]:
                if not share.turn.done():
                    share.turn.set_exception(failure)
            raise
        finally:
            self._hand_on(tp, line)
        end = len(mine.records)
        for share in shares[1:]:
            start, end = end, end + len(share.records)
            if not share.turn.done():
                share.turn.set_result(results[start:end])
        return results[: len(mine.records)]

    async def _write_in_parts(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> list[DeliveryResult]:
        results: list[DeliveryResult] = []
        start = size_bytes = 0
        for index, record in enumerate(records):
            more_bytes = _total_bytes([record])
            if size_bytes and size_bytes + more_bytes > BATCH_BYTES:
                results += await self._write(tp, records[start:index])
                start, size_bytes = index, 0
            size_bytes += more_bytes
        return results + await self._write(tp, records[start:] if start else records)

    def _hand_on(self, tp: TopicPartition, line: _Line) -> None:
        while line.waiting:
            share = line.waiting.popleft()
            if not share.turn.done():  # a sender that was cancelled has left the line
                share.turn.set_result(None)
                return
        line.busy = False
        del self._lines[tp]


def _total_bytes(records: Sequence[OutgoingRecord]) -> int:
    keys_and_values = [len(record.value) + len(record.key or b"") for record in records]
    return sum(keys_and_values) + _RECORD_OVERHEAD_BYTES * len(records)
