"""The Kafka side of the pipeline: records become requests, settled requests become replies and freed offsets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from aiokafka.errors import MessageSizeTooLargeError, ProducerClosed, RecordTooLargeError

from aggregator.adapters.telemetry import Metrics
from aggregator.adapters.tracing import Tracing
from aggregator.core.query import Priority, Source
from aggregator.core.watermark import Lease
from aggregator.errors import Code, TokenbatchError
from aggregator.kafka_codec import Intake, Refused, decode_all
from aggregator.kafka_replies import check_reply_fits, dead_letter, encode_refusal, encode_replies
from aggregator.ports import Deliveries, Producer
from aggregator.request import Failure, Request
from aggregator.settings import KafkaSettings

_LOG = logging.getLogger(__name__)
_DEAD_LETTER_PAUSE_S = 1.0


class DeadLettered(TokenbatchError):
    """Why a record goes to the dead-letter topic, in the words of its headers."""

    def __init__(self, code: Code, message: str, attempts: int = 1) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the class's code is a default
        self.attempts = attempts


class KafkaPath:
    """ports.KafkaPath over deliveries in and a producer out.

    A lease settles only when the broker has acknowledged what answers it: a reply, a dead letter, or both.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        intakes: Mapping[str, Intake],
        deliveries: Deliveries,
        producer: Producer,
        *,
        metrics: Metrics,
        tracing: Tracing,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._intakes = intakes
        self._deliveries = deliveries
        self._producer = producer
        self._metrics = metrics
        self._tracing = tracing
        self._clock = clock
        self._wall_clock = wall_clock
        self._held: frozenset[str] = frozenset()
        self._refusing: asyncio.Task[None] | None = None

    async def receive(self) -> Sequence[Request]:
        """The next requests; records that are none are refused beside them. Empty once fetching is stopped."""
        while True:
            leases = await self._deliveries.fetch()
            if self._refusing is not None:  # at most one fetch of refusals is under way: a flood stays bounded
                await self._refusing
                self._refusing = None
            if not leases:
                return ()
            with self._tracing.receive(leases[0].record.topic, len(leases)):
                requests, refused = decode_all(
                    leases, self._intakes, received_s=self._clock(), wall_s=self._wall_clock()
                )
            if refused:
                self._refusing = asyncio.create_task(self._refuse_unless_closed(refused), name="refuse records")
            if requests:
                return requests

    def check_reply_fits(self, request: Request) -> None:
        """Raise InvalidRequest for a request whose reply would not fit its topic."""
        check_reply_fits(request, request.options.dimensions, self._settings.max_reply_bytes)

    async def settle(self, requests: Sequence[Request]) -> None:
        """Reply to settled requests and free their offsets; a reply that cannot be written becomes a dead letter.

        Requests that come after the producer was closed are left to whoever reads their records next.
        """
        live = [request for request in requests if not request.origin.lease.watermark.fenced]
        if live:
            with contextlib.suppress(ProducerClosed):
                await self._reply(live)

    async def _reply(self, live: Sequence[Request]) -> None:
        with self._tracing.send(self._settings.reply_topic, len(live)):
            errors = await self._producer.send(encode_replies(live))
        dead: list[tuple[Lease, TokenbatchError]] = []
        for request, error in zip(live, errors, strict=True):
            if error is not None:
                dead.append((request.origin.lease, _unwritable(request.origin.topic, error)))
            elif request.failed and (failure := _internal(request)) is not None:
                dead.append((request.origin.lease, DeadLettered(failure.code, failure.message, failure.attempts)))
        owed = {id(lease) for lease, _ in dead}
        for lease in (request.origin.lease for request in live):
            if id(lease) not in owed:  # no dead letter of another holds its offset
                lease.watermark.settle(lease)
        await self._dead_letter(dead)
        for lease, _ in dead:
            lease.watermark.settle(lease)

    def hold(self, stopped: Callable[[str, Priority], bool]) -> None:
        """Pause the topics whose default model and class are stopped."""
        held = frozenset(
            name for name, intake in self._intakes.items() if stopped(intake.defaults.model, intake.defaults.priority)
        )
        if held != self._held:
            self._held = held
            self._deliveries.hold(held)

    def stuck(self) -> Sequence[Lease]:
        """Leases that hold their partition's watermark so far back that they are to be aged."""
        return self._deliveries.half_span_holders()

    async def _refuse_unless_closed(self, refused: Sequence[Refused]) -> None:
        with contextlib.suppress(ProducerClosed):
            await self._refuse(refused)

    async def _refuse(self, refused: Sequence[Refused]) -> None:
        """Answer records that are no requests, where somebody can be answered, and keep those nobody can read."""
        started_s = self._clock()
        dead: list[tuple[Lease, TokenbatchError]] = [
            (each.lease, each.error) for each in refused if each.dead_letter or each.route is None
        ]
        answered = [each for each in refused if each.route is not None]
        errors = await self._producer.send([encode_refusal(each) for each in answered])
        kept = {id(lease) for lease, _ in dead}
        for each, error in zip(answered, errors, strict=True):
            if error is not None and id(each.lease) not in kept and each.route is not None:
                dead.append((each.lease, _unwritable(each.route.topic, error)))
        await self._dead_letter(dead)
        codes: dict[Code, int] = {}
        for each in refused:
            each.lease.watermark.settle(each.lease)
            codes[each.error.code] = codes.get(each.error.code, 0) + 1
        self._metrics.answered(Source.KAFKA, codes, [self._clock() - started_s] * len(refused))

    async def _dead_letter(self, dead: Sequence[tuple[Lease, TokenbatchError]]) -> None:
        """Write dead letters; one that cannot be written holds its partition's commit until it can."""
        omit_value = False
        first_failure_unix_s = self._wall_clock()
        while dead:
            records = [
                dead_letter(
                    lease,
                    error,
                    topic=lease.record.topic + self._settings.dead_letter_suffix,
                    group_id=self._settings.group_id,
                    attempts=error.attempts if isinstance(error, DeadLettered) else 1,
                    first_failure_unix_s=first_failure_unix_s,
                    omit_value=omit_value,
                )
                for lease, error in dead
            ]
            results = await self._producer.send(records)
            failed = [item for item, result in zip(dead, results, strict=True) if result is not None]
            for (_, error), result in zip(dead, results, strict=True):
                if result is None:
                    self._metrics.dead_lettered(error.code, 1)
            if failed:
                reasons = [result for result in results if result is not None]
                too_large = all(isinstance(each, (MessageSizeTooLargeError, RecordTooLargeError)) for each in reasons)
                if too_large and not omit_value:
                    omit_value = True
                else:
                    _LOG.error(
                        "dead letters cannot be written, commits are held",
                        extra={"count": len(failed), "topic": records[0].topic, "error": repr(reasons[0])},
                    )
                    await asyncio.sleep(_DEAD_LETTER_PAUSE_S)
            dead = failed


def _unwritable(topic: str, error: Exception) -> DeadLettered:
    return DeadLettered(Code.INTERNAL, f"the reply could not be written to {topic}: {type(error).__name__}")


def _internal(request: Request) -> Failure | None:
    """The first input that failed through no fault of its sender's, if any did."""
    failures = (outcome for outcome in request.outcomes if isinstance(outcome, Failure))
    return next((failure for failure in failures if failure.code is Code.INTERNAL), None)
