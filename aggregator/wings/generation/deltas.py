"""Write the text of generations to Kafka as it grows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from aiokafka.errors import ProducerClosed
from typing_extensions import override

from aggregator.observability.metrics import Metrics
from aggregator.request.request import Request
from aggregator.sources.kafka.decode import origin_of, record_of, reply_id
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.sources.kafka.progress import Progress, ProgressParts
from aggregator.sources.wire.encode import json_of
from aggregator.wings.generation.generation import Generation
from aggregator.wings.generation.wire import response

_LOG = logging.getLogger(__name__)
_EVERY_S = 0.05
"""New tokens of this time become one record."""


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

    def __post_init__(self) -> None:
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
    def end(self, requests: Sequence[Request]) -> list[OutgoingRecord]:
        """The last delta of each completed request that wants them."""
        ended = [request for request in requests if self.wanted(request)] if self.topics else []
        for request in ended:
            self._grown.pop(request, None)
        return [record for request in ended if (record := self._record(request, done=True)) is not None]

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
                records = [record for request in grown if (record := self._record(request, done=False)) is not None]
                async for delivered in self.producer.send(records):
                    self.delivered([error for _, error in delivered])
        except ProducerClosed:
            self._grown.clear()
        finally:
            self._writing = None

    def _record(self, request: Request, *, done: bool) -> OutgoingRecord | None:
        """The next delta; None if there is nothing new, or the partition was revoked."""
        origin = origin_of(request)
        record = origin.in_flight
        if record.committed_offset.fenced:
            return None
        identity = reply_id(record, request.request_id, self.group_id)
        answer = response(request, identity, self.clock(), done=done)
        if answer is None:
            return None
        value = json_of(answer) if origin.route.json else answer.SerializeToString()
        topic, headers = self.topics[record.topic], origin.route.headers
        return OutgoingRecord(topic, None, record.key, value, headers, timestamp_ms=record.timestamp)
