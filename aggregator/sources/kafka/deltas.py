"""Write texts as they grow to a topic of their own, for those who would rather not wait for the reply.

The reply has all of a text, and is what its offset waits for. What is written here only tells of it early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from aiokafka.errors import ProducerClosed

from aggregator.observability.metrics import Metrics
from aggregator.request import Request
from aggregator.sources import generation as texts
from aggregator.sources.kafka.codec import route_of
from aggregator.sources.kafka.records import OutgoingRecord, Producer
from aggregator.sources.kafka.replies import reply_id
from aggregator.sources.response import json_of

_LOG = logging.getLogger(__name__)
_EVERY_S = 0.05
"""What a text gains in this time goes as one record."""


class Deltas:
    """The texts that have grown since they were last written, in the order in which they did."""

    def __init__(
        self,
        topics: Mapping[str, str],
        group_id: str,
        producer: Producer,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`topics`: of each query topic that has one, where what its texts gain is written."""
        self._topics = topics
        self._group_id = group_id
        self._producer = producer
        self._clock = clock
        self._grown: dict[Request, None] = {}
        self._writing: asyncio.Task[None] | None = None
        self._metrics = metrics
        self._refused = False

    def follow(self, request: Request) -> None:
        """Hear of a request's text from now on, if it is to be written and not asked for as a whole."""
        route = route_of(request)
        if request.text is not None and not request.text.final_only and self._topic(request) is not None:
            route.on_progress = lambda: self._grew(request)

    def end(self, requests: Sequence[Request]) -> list[OutgoingRecord]:
        """The last of each text that is followed, to be written with the replies; these have all of it."""
        if not self._topics:
            return []
        ended = [request for request in requests if route_of(request).on_progress is not None]
        for request in ended:
            route_of(request).on_progress = None
            self._grown.pop(request, None)
        return [record for request in ended if (record := self._record(request, done=True)) is not None]

    def delivered(self, errors: Sequence[Exception | None]) -> None:
        """What became of records: those that Kafka refused for good are missing to whoever reads along."""
        refused = [error for error in errors if error is not None]
        if refused:
            self._metrics.delta_refused(len(refused))
        if refused and not self._refused:
            _LOG.warning("texts cannot be written as they grow", extra={"error": type(refused[0]).__name__})
        self._refused = bool(refused)

    def _grew(self, request: Request) -> None:
        self._grown[request] = None
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="write deltas")

    async def _write(self) -> None:
        try:
            while self._grown:
                await asyncio.sleep(_EVERY_S)
                grown, self._grown = self._grown, {}
                records = [record for request in grown if (record := self._record(request, done=False)) is not None]
                async for delivered in self._producer.send(records):
                    self.delivered([error for _, error in delivered])
        except ProducerClosed:
            self._grown.clear()
        finally:
            self._writing = None

    def _record(self, request: Request, *, done: bool) -> OutgoingRecord | None:
        """What a text gained; None where that is nothing, or its partition is another's by now."""
        route, topic = route_of(request), self._topic(request)
        if topic is None or route.in_flight.committed_offset.fenced:
            return None
        identity = reply_id(route.in_flight, request.request_id, self._group_id)
        answer = texts.response(request, identity, self._clock(), done=done)
        if answer is None:
            return None
        value = json_of(answer) if route.json else answer.SerializeToString()
        return OutgoingRecord(topic, None, route.in_flight.record.key, value, route.headers)

    def _topic(self, request: Request) -> str | None:
        return self._topics.get(route_of(request).in_flight.committed_offset.topic)
