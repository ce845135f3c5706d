"""A stream holds its entries and their replies within its part of the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from aggregator.admission.ledger import Intake
from aggregator.observability.metrics import Metrics
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.wire.values import LARGE_BYTES
from aggregator.wings.redis.codec import EntryAnswer, StreamIntake, origin_of
from aggregator.wings.redis.connection import Server
from aggregator.wings.redis.stream import RequestStream
from k8s.pod.metrics_buffer import MetricsBuffer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import KAFKA
from tests.support.virtual_time import in_virtual_time

MB = 1_000_000


class FakeServer(Server):
    """Redis with entries that one claim after another takes."""

    def __init__(self, *claims: Sequence[bytes]) -> None:
        super().__init__(None, Metrics(MetricsBuffer()), lambda: 0.0)
        self.claims = list(claims)
        self.number = 0

    @override
    async def evaluate(self, script: Any, *arguments: Any) -> Any:
        if len(arguments) == 9:  # a take-over, which finds nothing
            return b"0-0", []
        values = self.claims.pop(0) if self.claims else []
        found = []
        for value in values:
            self.number += 1
            found.append((b"%d-0" % self.number, [b"value", value]))
        return b"0", b"0-0", found

    @override
    async def wait_for_entry(self, stream: str, last: bytes, wait_s: float) -> None:
        await asyncio.sleep(wait_s)


def of(texts: int) -> bytes:
    return pb.EmbedRequest(inputs=[pb.Input(text="a")] * texts).SerializeToString()


class Reading:
    """A stream of a model with 1,000 dimensions; its part is a megabyte where a test says nothing else."""

    def __init__(self, *claims: Sequence[bytes], part_bytes: int = MB) -> None:
        self.intake = Intake(part_bytes)
        self.refused: list[EntryAnswer] = []
        defaults = Defaults(KAFKA, "m", Priority.DEFAULT)
        self.stream = RequestStream(
            FakeServer(*claims),
            StreamIntake("in", "g", "c", defaults, "out", lambda _: True, EMBEDDING),
            30.0,
            room=lambda: 1000,
            intake_bytes=self.intake,
            dimensions=lambda _: 1000,
            known=lambda _: True,
            refuse=self._refuse,
            clock=lambda: asyncio.get_running_loop().time(),
        )

    async def _refuse(self, answers: Sequence[EntryAnswer]) -> None:
        self.refused += answers
        for answer in answers:
            self.stream.release(answer.origin.entry.entry_id)

    async def take(self) -> list[bytes]:
        """The ids of the next requests."""
        return [_id(request) for request in await self.stream.receive()]


def _id(request: Request) -> bytes:
    return origin_of(request).entry.entry_id


@in_virtual_time
async def test_requests_of_a_stream_wait_until_their_replies_have_room() -> None:
    reading = Reading([of(64)] * 4)  # 300 kB each with their vectors
    taken = await reading.take()
    assert taken == [b"1-0", b"2-0"]
    assert reading.intake.total <= MB
    more = asyncio.create_task(reading.take())
    await asyncio.sleep(5)
    assert not more.done()
    reading.stream.release(b"1-0")
    assert await more == [b"3-0"]
    for entry_id in (b"2-0", b"3-0"):
        reading.stream.release(entry_id)
    assert await reading.take() == [b"4-0"]
    reading.stream.release(b"4-0")
    reading.stream.release(b"4-0")
    assert reading.intake.total == 0


@in_virtual_time
async def test_no_entry_is_claimed_while_the_stream_holds_its_share() -> None:
    reading = Reading([of(160)], [of(1)])
    assert await reading.take() == [b"1-0"]
    reading.intake.hold("kafka:in", MB // 2)
    more = asyncio.create_task(reading.take())
    await asyncio.sleep(5)
    assert not more.done()
    reading.stream.release(b"1-0")
    assert await more == [b"2-0"]


@in_virtual_time
async def test_an_entry_whose_reply_never_fits_is_refused_in_words() -> None:
    reading = Reading([of(300), of(1)])
    assert await reading.take() == [b"2-0"]
    [answer] = reading.refused
    status = pb.EmbedResponse.FromString(answer.reply or b"").status
    assert "bytes of memory: at most 800000 are taken" in status.message


@in_virtual_time
async def test_many_small_entries_of_a_claim_let_others_have_their_turn() -> None:
    reading = Reading([of(1)] * 90, part_bytes=1000 * MB)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    assert len(await reading.take()) == 90
    few, turns = turns, 0
    reading = Reading([of(300)] * 90, part_bytes=1000 * MB)
    assert len(await reading.take()) == 90
    assert turns >= few + 90 * len(of(300)) // (2 * LARGE_BYTES)
    beside.cancel()


@in_virtual_time
async def test_a_stream_with_less_urgent_last_entries_is_known() -> None:
    bulk = pb.EmbedRequest(inputs=[pb.Input(text="a")], priority=pb.PRIORITY_BACKGROUND).SerializeToString()
    reading = Reading([bulk, of(1)], [], [of(1)])
    await reading.take()
    assert reading.stream.outranked
    await reading.take()
    assert not reading.stream.outranked
