"""A dead letter is written whenever it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from typing_extensions import override

from aggregator.errors import Code
from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.offsets import CommittedOffset
from aggregator.sources.kafka.outgoing import Delivered, OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.sources.kafka.replies import DeadLetter, DeadLetters
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.records import FakeRecord
from tests.support.virtual_time import in_virtual_time


class NeverStarted(KafkaProducer):
    """A producer that only sends."""

    @override
    async def start(self) -> None:
        raise AssertionError("It is started.")

    @override
    async def close(self, timeout_s: float) -> None:
        raise AssertionError("It is closed.")


class LateCompany(NeverStarted):
    """A producer that has the next letter added just when the writing of the first has ended."""

    def __init__(self) -> None:
        self.committed_offset = CommittedOffset("in", 0, 0)
        self.letters = DeadLetters(KafkaSettings(), self, Metrics(MetricsBuffer()), on_change=lambda: None)

    def add(self, offset: int) -> None:
        in_flight = self.committed_offset.deliver(FakeRecord("in", 0, offset, 0, None, b"x"))
        self.letters.add(DeadLetter(in_flight, Code.DATA_LOSS, "no message"))

    @override
    async def send(self, records: Sequence[OutgoingRecord]) -> AsyncIterator[Delivered]:
        """Acknowledge all; between the writer's last look and the end of its task, the second letter comes."""
        loop = asyncio.get_running_loop()
        acknowledged = loop.create_future()
        loop.call_soon(acknowledged.set_result, None)
        if self.committed_offset.position == 0 and self.committed_offset.unfinished == 1:
            loop.call_soon(loop.call_soon, self.add, 1)
        await acknowledged
        yield [(position, None) for position in range(len(records))]


async def test_a_letter_that_comes_as_the_writing_ends_is_written_too() -> None:
    company = LateCompany()
    company.add(0)
    async with asyncio.timeout(30):
        while company.committed_offset.position < 2:  # noqa: ASYNC110 - a committed offset calls nobody
            await asyncio.sleep(0)


class Startled(NeverStarted):
    """A producer that raises once, then acknowledges all."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    @override
    async def send(self, records: Sequence[OutgoingRecord]) -> AsyncIterator[Delivered]:
        self.sent.append(len(records))
        if len(self.sent) == 1:
            raise RuntimeError("never seen before")
        yield [(position, None) for position in range(len(records))]


@in_virtual_time
async def test_letters_are_written_again_after_an_error_that_nobody_knows() -> None:
    producer, committed_offset = Startled(), CommittedOffset("in", 0, 0)
    letters = DeadLetters(KafkaSettings(), producer, Metrics(MetricsBuffer()), on_change=lambda: None)
    for offset in range(3):
        in_flight = committed_offset.deliver(FakeRecord("in", 0, offset, 0, None, b"x"))
        letters.add(DeadLetter(in_flight, Code.DATA_LOSS, "no message"))
    await letters.written()
    assert (producer.sent, committed_offset.position) == ([3, 3], 3)
