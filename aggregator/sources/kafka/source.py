"""Kafka as a source: records become requests, completed requests become replies, and offsets are committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from math import inf

from aiokafka.errors import (
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from aggregator.errors import Code
from aggregator.observability.metrics import Metrics, Unwritten
from aggregator.observability.tracing import Tracing
from aggregator.request import Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.clock_skew import ClockSkew
from aggregator.sources.kafka.codec import Refused, decode_all, decode_large, intakes, record_of
from aggregator.sources.kafka.consumer.committed_offset import InFlightRecord
from aggregator.sources.kafka.consumer.consumer import KafkaConsumer
from aggregator.sources.kafka.dead_letters import DeadLetter, DeadLetters
from aggregator.sources.kafka.deltas import Deltas
from aggregator.sources.kafka.large_records import LARGE_BYTES, Fetched, LargeRecords, size_bytes
from aggregator.sources.kafka.records import Producer
from aggregator.sources.kafka.replies import check_reply_fits, encode_refusal, encode_replies
from aggregator.sources.source import KAFKA, Receive

_LOG = logging.getLogger(__name__)
_UNWRITTEN: dict[type[Exception], Unwritten] = {
    UnknownTopicOrPartitionError: Unwritten.NOT_THERE,
    TopicAuthorizationFailedError: Unwritten.FORBIDDEN,
    MessageSizeTooLargeError: Unwritten.TOO_LARGE,
    RecordTooLargeError: Unwritten.TOO_LARGE,
}


class KafkaSource:
    """A Source over a consumer and a producer. Its senders do not wait: topics are paused while a model is full.

    A record is completed only when the broker has acknowledged what answers it: a reply, a dead letter, or both.
    """

    name = KAFKA
    refusable = False
    replayed = True

    def __init__(
        self,
        settings: KafkaSettings,
        default_model: str,
        consumer: KafkaConsumer,
        producer: Producer,
        *,
        trusts_tenant: bool = True,
        metrics: Metrics,
        tracing: Tracing,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._intakes = intakes(settings, self, default_model, trusts_tenant=trusts_tenant)
        self._consumer = consumer
        self._producer = producer
        self._metrics = metrics
        self._tracing = tracing
        self._clock = clock
        self._wall_clock = wall_clock
        self._dead_letters = DeadLetters(
            settings, producer, metrics, on_full_changed=self._pause_topics, wall_clock=wall_clock
        )
        deltas = {topic.name: topic.delta_topic for topic in settings.topics if topic.delta_topic}
        self._deltas = Deltas(deltas, settings.group_id, producer, metrics, clock=clock)
        self._skew = ClockSkew(_tell_doubt)
        metrics.watch_clock(lambda: self._skew.shown_s(clock()))
        self._asked = {name: {intake.defaults.model} for name, intake in self._intakes.items()}
        self._stopped: frozenset[str] = frozenset()
        self._paused: frozenset[str] = frozenset()
        self._large = LargeRecords(on_full_changed=self._pause_topics)
        self._refusing: asyncio.Task[None] | None = None
        self._stuck: frozenset[InFlightRecord] = frozenset()

    @property
    def receivers(self) -> Sequence[Receive]:
        """One for small records and one for large ones."""
        return self.receive, self.receive_large

    def receive_now(self) -> None:
        """Records do not wait to be received."""

    async def receive(self) -> Sequence[Request]:
        """The next requests with small values; records that are no requests are refused meanwhile.

        Empty once fetching is stopped.
        """
        while True:
            in_flight_records = await self._consumer.fetch()
            if self._refusing is not None:  # at most one fetch of refusals is under way: a flood stays bounded
                await self._refusing
                self._refusing = None
            if not in_flight_records:
                self._large.close()
                return ()
            with self._tracing.receive(in_flight_records[0].topic, len(in_flight_records)):
                now_s, wall_s = self._clock(), self._wall_clock()
                self._skew.read(in_flight_records, now_s, wall_s)
                large = [
                    Fetched(in_flight, now_s, wall_s)
                    for in_flight in in_flight_records
                    if size_bytes(in_flight) >= LARGE_BYTES
                ]
                if large:
                    in_flight_records = [
                        in_flight for in_flight in in_flight_records if size_bytes(in_flight) < LARGE_BYTES
                    ]
                requests, refused = await decode_all(in_flight_records, self._intakes, received_s=now_s, wall_s=wall_s)
                self._drop_doubtful_deadlines(requests)
            if refused:
                self._refusing = asyncio.create_task(self._refuse(refused), name="refuse records")
            self._large.put(large)
            if requests:
                return requests

    async def receive_large(self) -> Sequence[Request]:
        """The next requests with large values, which would delay the others; those of paused topics wait."""
        while fetched := await self._large.take():
            live = [each for each in fetched if not each.in_flight.committed_offset.fenced]
            requests, refused = await decode_large(live, self._intakes)
            self._drop_doubtful_deadlines(requests)
            if refused:
                await self._refuse(refused)
            if requests:
                return requests
        return ()

    def _drop_doubtful_deadlines(self, requests: Sequence[Request]) -> None:
        """A request does not expire if this process's clock differs too much from the record's."""
        for request in requests:
            if request.deadline_s != inf and self._skew.doubts(record_of(request)):
                request.deadline_s = inf

    def accept(self, request: Request) -> None:
        """Note the model that its topic's records ask for. Raises InvalidRequest if its reply could be too large."""
        self._asked[record_of(request).topic].add(request.model)
        check_reply_fits(request, request.options.dimensions, self._settings.max_reply_bytes)
        self._deltas.follow(request)

    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        """Reply to completed requests and complete their records; a reply that cannot be written becomes a dead letter.

        Requests that come after the producer was closed are left to the next consumer of their records.
        """
        live = [request for request in requests if not record_of(request).committed_offset.fenced]
        last_deltas = self._deltas.end(live)
        left = dict.fromkeys(requests)
        if live:
            with contextlib.suppress(ProducerClosed), self._tracing.send(self._settings.reply_topic, len(live)):
                replies = encode_replies(live, self._settings.group_id, self._clock())
                async for delivered in self._producer.send(replies):
                    for position, error in delivered:
                        self._free_offset(live[position], error)
                        del left[live[position]]
                    yield [live[position] for position, _ in delivered]
                async for delivered in self._producer.send(last_deltas):
                    self._deltas.delivered([error for _, error in delivered])
        if left:
            yield tuple(left)

    def _free_offset(self, request: Request, error: Exception | None) -> None:
        """The broker has acknowledged or refused its reply."""
        in_flight = record_of(request)
        if error is not None:
            letter = self._unwritten(in_flight, in_flight.route.topic, error)
            request.overrule(Failure(letter.code, letter.message))
        elif request.failed and (failure := _internal(request)) is not None:
            self._dead_letters.add(DeadLetter(in_flight, failure.code, failure.message, failure.attempts))
        else:
            in_flight.committed_offset.complete(in_flight)

    async def delivered(self) -> None:
        """Wait until every dead letter is written."""
        await self._dead_letters.written()

    def pause(self, away: Callable[[str], bool], full: Callable[[str, Priority], bool]) -> None:
        """Pause the topics whose own model has no server, or that ask for a model that is full for their class."""
        self._stopped = frozenset(
            name
            for name, intake in self._intakes.items()
            if away(intake.defaults.model) or any(full(model, intake.defaults.priority) for model in self._asked[name])
        )
        self._pause_topics()

    def revoked(self, in_flight_records: Sequence[InFlightRecord]) -> Callable[[Request], bool]:
        """Partitions were revoked: returns which requests to forget, as the new owner processes them."""
        self._large.drop_fenced()
        gone = frozenset(in_flight_records)
        return lambda request: request.source is self and record_of(request) in gone

    def _pause_topics(self) -> None:
        stopped = self._stopped | self._dead_letters.full
        if stopped != self._large.paused:
            self._large.pause(stopped)
        paused = stopped | self._large.full  # waiting records of topics that are only full are still taken
        if paused != self._paused:
            self._paused = paused
            self._consumer.pause(paused)

    def newly_stuck(self) -> Callable[[Request], bool] | None:
        """The requests whose records hold their partition's offset so far back that they are to be promoted."""
        stuck = frozenset(self._consumer.half_span_holders())
        if stuck == self._stuck:
            return None
        self._stuck = stuck
        return lambda request: record_of(request) in stuck

    async def _refuse(self, refused: Sequence[Refused]) -> None:
        """Reply to records that are no requests where their route is known; dead-letter those that cannot be read."""
        started_s = self._clock()
        answered = [each for each in refused if each.route is not None]
        codes: Counter[Code] = Counter()
        for each in refused:
            if each.route is None:
                codes[self._refusal_ended(each, None)] += 1
        with contextlib.suppress(ProducerClosed):
            replies = [encode_refusal(each, self._settings.group_id) for each in answered]
            async for delivered in self._producer.send(replies):
                for position, error in delivered:
                    codes[self._refusal_ended(answered[position], error)] += 1
        self._metrics.answered(KAFKA, codes, [self._clock() - started_s] * codes.total())

    def _refusal_ended(self, refused: Refused, error: Exception | None) -> Code:
        """The broker has acknowledged or refused the reply to a refused record; returns its final code."""
        in_flight = refused.in_flight
        if refused.dead_letter or refused.route is None:
            self._dead_letters.add(DeadLetter(in_flight, refused.error.code, str(refused.error)))
        elif error is not None:
            return self._unwritten(in_flight, refused.route.topic, error).code
        else:
            in_flight.committed_offset.complete(in_flight)
        return refused.error.code

    def _unwritten(self, in_flight: InFlightRecord, topic: str, error: Exception) -> DeadLetter:
        """Dead-letter the record of a reply that Kafka refused."""
        self._metrics.unwritten(_UNWRITTEN.get(type(error), Unwritten.REFUSED))
        why = f"the reply could not be written to {topic}: {type(error).__name__}"
        letter = DeadLetter(in_flight, Code.INTERNAL, why)
        self._dead_letters.add(letter)
        return letter


def _tell_doubt(skew_s: float) -> None:
    if skew_s:
        _LOG.warning("the clock is off the records' clocks; nothing expires by it", extra={"skew_s": round(skew_s, 1)})
    else:
        _LOG.info("the clock agrees with the records' again")


def _internal(request: Request) -> Failure | None:
    """The first failure that is not the sender's fault, if there is one."""
    failures = (outcome for outcome in request.outcomes if isinstance(outcome, Failure))
    return next((failure for failure in failures if failure.code is Code.INTERNAL), None)
