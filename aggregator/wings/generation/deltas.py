"""Write the text of generations to Kafka as it grows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from aiokafka.errors import ProducerClosed
from typing_extensions import override

from aggregator.observability.metrics import Metrics
from aggregator.request.request import Request
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.kafka.decode import origin_of, record_of, reply_id
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.sources.kafka.progress import Progress, ProgressParts
from aggregator.sources.wire.encode import json_of
from aggregator.wings.generation.generation import (
    TURN_LOGPROBS,
    Generation,
    New,
    generation_of,
    logprobs_in,
    writes_long,
)
from aggregator.wings.generation.wire import response

_LOG = logging.getLogger(__name__)
_EVERY_S = 0.05
"""New tokens of this time become one record."""
_DELTA = 8
"""Writing a delta takes as long as writing eight log probabilities."""


@dataclass(eq=False)
class Deltas(Progress):
    """The generations with new tokens that are not written yet, in the order of their first such token.

    `topics`: the delta topic of each query topic that has one. `known`: whether a model is configured.
    """

    topics: Mapping[str, str]
    known: Callable[[str], bool]
    group_id: str
    producer: KafkaProducer
    metrics: Metrics
    _: KW_ONLY
    clock: Callable[[], float]
    _grown: dict[Request, None] = field(default_factory=dict)
    _writing: asyncio.Task[None] | None = None
    _refused: bool = False
    _handed_over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._handed_over.set()
        self._unwritten = self.metrics.buffer.counter(
            "tokenbatch.generate.deltas.unwritten",
            "{record}",
            "records of the delta topic that Kafka rejected permanently",
        )

    @classmethod
    def opened(cls, parts: ProgressParts) -> Deltas:
        settings = parts.settings
        topics = {topic.name: topic.delta_topic for topic in settings.topics if topic.delta_topic}
        return cls(topics, parts.known, settings.group_id, parts.producer, parts.metrics, clock=parts.clock)

    def wanted(self, request: Request) -> bool:
        """Whether the request's topic has a delta topic, and the request wants deltas."""
        generation = request.details
        if not isinstance(generation, Generation) or generation.final_only or not self.known(request.model):
            return False
        return record_of(request).topic in self.topics

    @override
    def grew(self, request: Request) -> None:
        """The request's generation has new tokens."""
        if self.wanted(request):
            self._grown[request] = None
            if self._writing is None:
                self._writing = asyncio.create_task(self._write(), name="write deltas")

    @override
    async def end(self, requests: Sequence[Request]) -> list[OutgoingRecord]:
        """The last delta of each completed request that wants them."""
        ended = [request for request in requests if self.wanted(request)] if self.topics else []
        if not ended:
            return []
        for request in ended:
            self._grown.pop(request, None)
        await self._handed_over.wait()  # the deltas before them are with the producer
        return await self._records(ended, done=True)

    @override
    def delivered(self, errors: Sequence[Exception | None]) -> None:
        """Count delivery errors: deltas that Kafka rejects are missing from the delta topic."""
        refused = [error for error in errors if error is not None]
        if refused:
            self._unwritten.add(len(refused))
        if refused and not self._refused:
            _LOG.warning("deltas could not be written", extra={"error": type(refused[0]).__name__})
        self._refused = bool(refused)

    async def _write(self) -> None:
        try:
            while self._grown:
                await asyncio.sleep(_EVERY_S)
                grown, self._grown = self._grown, {}
                self._handed_over.clear()
                try:
                    records = await self._records(grown, done=False)
                finally:
                    self._handed_over.set()  # who waits for it goes on when the producer has them
                async for delivered in self.producer.send(records):
                    self.delivered([error for _, error in delivered])
        except ProducerClosed:
            self._grown.clear()
        finally:
            self._writing = None

    async def _records(self, requests: Iterable[Request], *, done: bool) -> list[OutgoingRecord]:
        """The next delta of each; long ones on a thread, and others have their turn between short ones."""
        records: list[OutgoingRecord] = []
        turn = 0
        for request in requests:
            generation = generation_of(request)
            new = generation.read_new()  # before the text grows further
            write = partial(self._record, request, new, self.clock(), done=done)
            if writes_long(generation, new[3]):
                record = await in_slow_lane(write)
            else:
                turn += _DELTA + logprobs_in(generation, new[3])
                if turn > TURN_LOGPROBS:
                    await asyncio.sleep(0)
                    turn = 0
                record = write()
            if record is not None:
                records.append(record)
        return records

    def _record(self, request: Request, new: New, now_s: float, *, done: bool) -> OutgoingRecord | None:
        """The delta for what is new; None if nothing is, or the partition was revoked."""
        origin = origin_of(request)
        record = origin.in_flight
        if record.committed_offset.fenced:
            return None
        identity = reply_id(record, request.request_id, self.group_id)
        answer = response(request, new, identity, now_s, done=done)
        if answer is None:
            return None
        value = json_of(answer) if origin.route.json else answer.SerializeToString()
        topic, headers = self.topics[record.topic], origin.route.headers
        return OutgoingRecord(topic, None, record.key, value, headers, timestamp_ms=record.timestamp)
