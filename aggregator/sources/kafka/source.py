"""Kafka as a source: records become requests, completed requests become replies, and offsets are committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from math import inf

from typing_extensions import override

from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.request.kind import Kind
from aggregator.request.request import KAFKA, Backlog, Receive, Request, Source
from aggregator.scheduler.work_item import Priority, Task
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.kafka.connection import prepare_topics
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.decode import (
    Refused,
    decode_all,
    decode_large,
    intakes,
    origin_of,
    record_of,
    refused_for_room,
)
from aggregator.sources.kafka.envelope import EnvelopeFormat
from aggregator.sources.kafka.holdings import Sized, Sizes
from aggregator.sources.kafka.offsets import Fetched, InFlightRecord
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.sources.kafka.progress import OpenProgress, ProgressParts
from aggregator.sources.kafka.replies import DeadLetters, Outcomes
from aggregator.sources.kafka.waiting import LargeRecords, WaitingRequests
from aggregator.sources.wire.values import LARGE_BYTES

_CLOCKS_AGREE_S = 5.0  # with NTP clocks differ by milliseconds; a record further in the future is by a wrong clock


class KafkaSource(Source):
    """A consumer and a producer. Its senders do not wait: topics are paused while a model is full.

    A record is completed only when the broker has acknowledged its reply, its dead letter, or both.
    """

    name = KAFKA
    refusable = False

    def __init__(
        self,
        settings: KafkaSettings,
        default_model: str,
        consumer: KafkaConsumer,
        producer: KafkaProducer,
        *,
        kinds: Sequence[Kind] = (EMBEDDING,),
        trusts_tenant: bool = True,
        envelopes: Sequence[EnvelopeFormat] = (),
        progress: Sequence[OpenProgress] = (),
        known: Callable[[str], bool] = lambda _: True,
        dimensions: Callable[[str], int] = lambda _: 0,
        metrics: Metrics,
        tracing: Tracing,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises StartError for a task that is none of `kinds`.

        `envelopes`: the formats that are known. `progress`: what else is written of requests. `known`: whether a model
        is configured. `dimensions`: of its vectors, 0 if no server told.
        """
        self._settings = settings
        self._known = known
        self._dimensions = dimensions
        self._intakes = intakes(
            settings, self, default_model, kinds=kinds, trusts_tenant=trusts_tenant, envelopes=envelopes
        )
        self._consumer = consumer
        self._producer = producer
        self._tracing = tracing
        self._clock = clock
        self._wall_clock = wall_clock
        self._dead_letters = DeadLetters(
            settings, producer, metrics, on_change=self._pause_topics, wall_clock=wall_clock
        )
        parts = ProgressParts(settings, producer, metrics, known, clock)
        self._progress = [open_progress(parts) for open_progress in progress]
        self._outcomes = Outcomes(
            settings=settings,
            producer=producer,
            dead_letters=self._dead_letters,
            progress=self._progress,
            metrics=metrics,
            clock=clock,
            on_room=self._pause_topics,
        )
        self._metrics = metrics
        self._asked = {name: {intake.defaults.model} for name, intake in self._intakes.items()}
        self._least_urgent: dict[str, Priority] = {}
        self._stopped: frozenset[str] = frozenset()
        self._paused: frozenset[str] = frozenset()
        self._held: frozenset[str] = frozenset()
        self._large = LargeRecords()
        self._waiting = WaitingRequests(consumer.holdings)
        self._refusing: set[asyncio.Task[None]] = set()

    @property
    @override
    def receivers(self) -> Sequence[Receive]:
        return self.receive, self.receive_large, self._waiting.take

    @override
    async def prepare(self, timeout_s: float) -> None:
        """Make sure that every topic is there, and connect the producer. Raises StartError."""
        await prepare_topics(self._settings, timeout_s)
        await self._producer.start()

    @override
    async def run(self) -> None:
        await self._consumer.run()

    @override
    def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        return self._outcomes.reply(requests)

    @override
    def progressed(self, request: Request) -> None:
        for progress in self._progress:
            progress.grew(request)

    @override
    async def stop(self, grace_s: float) -> None:
        self._consumer.stop_fetching()

    @override
    async def delivered(self) -> None:
        while self._refusing:
            await asyncio.wait(self._refusing)
            self._forget_refused()
        await self._dead_letters.written()

    @override
    async def close(self, timeout_s: float) -> None:
        await self._producer.close(timeout_s)
        await self._consumer.close(timeout_s)

    @override
    def trouble(self) -> str | None:
        return self._producer.trouble if self._consumer.healthy else "Kafka cannot be reached"

    async def receive(self) -> Sequence[Request]:
        """The next requests with small values; records that are no requests are refused meanwhile.

        Empty once fetching is stopped.
        """
        while True:
            in_flight_records = await self._consumer.fetch()
            self._forget_refused()
            if not in_flight_records:
                self._large.close()
                self._waiting.close()
                return ()
            with self._tracing.receive(in_flight.topic for in_flight in in_flight_records):
                now_s, wall_s = self._clock(), self._wall_clock()
                large = [each for each in in_flight_records if len(each.value or b"") >= LARGE_BYTES]
                if large:
                    in_flight_records = [each for each in in_flight_records if len(each.value or b"") < LARGE_BYTES]
                requests, refused = await decode_all(in_flight_records, self._intakes, received_s=now_s, wall_s=wall_s)
                requests = self._take_on(requests, refused)
            self._refuse(refused)
            self._large.put([Fetched(each, now_s, wall_s) for each in large])
            if requests:
                return requests

    async def receive_large(self) -> Sequence[Request]:
        """The next requests with large values, which would delay the others; those of paused topics wait."""
        while fetched := await self._large.take():
            live = [each for each in fetched if not each.in_flight.committed_offset.fenced]
            requests, refused = await decode_large(live, self._intakes)
            requests = self._take_on(requests, refused)
            self._refuse(refused)
            if requests:
                return requests
        return ()

    def _refuse(self, refused: Sequence[Refused]) -> None:
        """Answer records that are no requests; nothing else waits for it. The bytes that they hold bound how many."""
        if refused:
            self._refusing.add(asyncio.create_task(self._outcomes.refuse(refused), name="refuse records"))

    def _forget_refused(self) -> None:
        """Forget the refusals that have ended. Raises what ended one, which is a bug."""
        ended = {refusing for refusing in self._refusing if refusing.done()}
        self._refusing -= ended
        for refusing in ended:
            refusing.result()

    def _take_on(self, requests: Sequence[Request], refused: list[Refused]) -> list[Request]:
        """The requests that there is room for; the others wait, or are added to `refused` if there never is.

        Notes the models that the records of a topic ask for and their least urgent class, and counts records from the
        future.
        """
        wall_minus_monotonic_s = self._wall_clock() - self._clock()
        largest = self._consumer.holdings.largest
        least_urgent: dict[str, Priority] = {}
        sizes = Sizes(self._dimensions)
        sized: list[Sized] = []
        for request in requests:
            origin = origin_of(request)
            record = origin.in_flight
            topic = record.committed_offset.topic
            if record.timestamp / 1000 - wall_minus_monotonic_s > request.received_s + _CLOCKS_AGREE_S:
                self._metrics.records_ahead.add(1, topic)
                request.deadline_s = inf
            if request.priority > least_urgent.setdefault(topic, Priority.INTERACTIVE):
                least_urgent[topic] = request.priority
            model, asked = request.model, self._asked[topic]
            if model not in asked and self._known(model):
                asked.add(model)
            added = sizes.added_bytes(request, origin)
            if record.held_bytes + added > largest:
                refused.append(refused_for_room(request, record.held_bytes + added, largest))
            else:
                sized.append((request, added))
        self._least_urgent |= least_urgent
        return self._waiting.admit(sized)

    def _outranked(self, topic: str) -> bool:
        """Whether the last records of a topic were less urgent than those that name no class."""
        own = self._intakes[topic].defaults.priority
        return self._least_urgent.get(topic, own) > own

    @override
    def pause(self, away: Callable[[str, Task], bool], full: Callable[[str, Priority], bool]) -> None:
        self._stopped = frozenset(
            name
            for name, intake in self._intakes.items()
            if away(intake.defaults.model, intake.kind.task)
            or any(full(model, intake.defaults.priority) for model in self._asked[name])
        )
        self._pause_topics()

    def revoked(self, in_flight_records: Sequence[InFlightRecord]) -> Callable[[Request], bool]:
        """Partitions were revoked: returns a test for the requests to forget, as the new owner processes them."""
        self._large.drop_fenced()
        self._waiting.drop_fenced()
        gone = frozenset(in_flight_records)
        return lambda request: request.source is self and record_of(request) in gone

    @override
    def backlogs(self) -> list[Backlog]:
        paused = self._consumer.paused()
        return [
            Backlog(
                KAFKA,
                tp.topic,
                tp.partition,
                self._intakes[tp.topic].defaults.model,
                records=partition.lag_records,
                uncommitted_span=partition.committed_offset.span,
                paused=tp in paused,
                position=partition.delivered_to,
                outranked=tp in paused and self._outranked(tp.topic),
            )
            for tp, partition in self._consumer.partitions.items()
        ]

    def _pause_topics(self) -> None:
        stopped = self._stopped | self._dead_letters.full
        if stopped != self._large.paused:
            self._large.pause(stopped)
        self._waiting.pause(stopped)
        holds = self._consumer.holdings.full()
        if stopped != self._paused or holds != self._held:
            self._paused, self._held = stopped, holds
            self._consumer.pause(stopped)
