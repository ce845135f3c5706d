"""One write at a time per partition, in order, and nobody's records are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition

from aggregator.sources.kafka.producer.partition_queues import BATCH_BYTES, DeliveryResult, PartitionQueues
from aggregator.sources.kafka.records import OutgoingRecord
from tests.fakes.clock import run

_TP = TopicPartition("replies", 0)


def _record(name: str, size_bytes: int = 10) -> OutgoingRecord:
    return OutgoingRecord("replies", 0, name.encode(), b"x" * size_bytes, ())


class _Log:
    """Takes a second for each write; notes what was written together, and how many writes ran at once."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.batches: list[list[str]] = []
        self.running = self.most_running = 0
        self.failure = failure

    async def write(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> list[DeliveryResult]:
        del tp
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(1)
        self.running -= 1
        if self.failure is not None:
            raise self.failure
        self.batches.append([(record.key or b"").decode() for record in records])
        return [ValueError(record.key) if (record.key or b"").startswith(b"bad") else None for record in records]


def test_what_comes_while_a_write_is_out_goes_together_in_the_next() -> None:
    async def check() -> None:
        log = _Log()
        queues = PartitionQueues(log.write)
        first = queues.put(_TP, [_record("a"), _record("a2")])
        await asyncio.sleep(0.5)
        others = [queues.put(_TP, [_record(name), _record(f"{name}2")]) for name in ("b", "bad", "c")]
        words = await asyncio.gather(first, *others)
        assert log.batches == [["a", "a2"], ["b", "b2", "bad", "bad2", "c", "c2"]]
        assert log.most_running == 1
        assert [[word is None for word in each] for each in words] == [[True, True]] * 2 + [[False, False]] + [
            [True, True]
        ]

    run(check())


def test_a_batch_keeps_its_bound_and_its_order() -> None:
    async def check() -> None:
        log = _Log()
        queues = PartitionQueues(log.write)
        third = BATCH_BYTES // 3
        await asyncio.gather(*(queues.put(_TP, [_record(str(number), third)]) for number in range(6)))
        assert [name for batch in log.batches for name in batch] == [str(number) for number in range(6)]
        assert max(map(len, log.batches)) == 2

    run(check())


def test_other_partitions_do_not_wait() -> None:
    async def check() -> None:
        log = _Log()
        queues = PartitionQueues(log.write)
        await asyncio.gather(*(queues.put(TopicPartition("replies", number), [_record("x")]) for number in range(3)))
        assert log.most_running == 3

    run(check())


def test_a_failed_write_fails_all_that_were_in_it_and_what_waits_goes_on() -> None:
    async def check() -> None:
        log = _Log(failure=RuntimeError("closed"))
        queues = PartitionQueues(log.write)
        first = queues.put(_TP, [_record("0")])
        await asyncio.sleep(0)
        sends = [first, *(queues.put(_TP, [_record(str(number))]) for number in range(1, 4))]
        await asyncio.sleep(1.5)
        log.failure = None
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(result) for result in results] == [RuntimeError, list, list, list]

    run(check())


@pytest.mark.parametrize("cancelled_after_s", [0.5, 1.0])
def test_a_sender_that_is_cancelled_does_not_block_the_others(cancelled_after_s: float) -> None:
    async def check() -> None:
        log = _Log()
        queues = PartitionQueues(log.write)
        first, second, third = (queues.put(_TP, [_record(name)]) for name in "abc")
        await asyncio.sleep(cancelled_after_s)
        second.cancel()
        assert await third == [None]
        assert await first == [None]

    run(check())
