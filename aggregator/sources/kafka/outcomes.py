"""Write what answers a record, and complete the record once the broker has acknowledged it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

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
from aggregator.request.request import KAFKA, Failure, Request
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.answers import internal_failure
from aggregator.sources.kafka.codec import Refused, record_of
from aggregator.sources.kafka.committed_offset import InFlightRecord
from aggregator.sources.kafka.dead_letters import DeadLetter, DeadLetters
from aggregator.sources.kafka.deltas import Deltas
from aggregator.sources.kafka.records import Producer
from aggregator.sources.kafka.replies import encode_refusal, encode_replies

_UNWRITTEN: dict[type[Exception], Unwritten] = {
    UnknownTopicOrPartitionError: Unwritten.NOT_THERE,
    TopicAuthorizationFailedError: Unwritten.FORBIDDEN,
    MessageSizeTooLargeError: Unwritten.TOO_LARGE,
    RecordTooLargeError: Unwritten.TOO_LARGE,
}


class Outcomes:
    """A record is completed by a reply, a dead letter, or both. A reply that Kafka refuses becomes a dead letter."""

    def __init__(
        self,
        settings: KafkaSettings,
        producer: Producer,
        dead_letters: DeadLetters,
        deltas: Deltas,
        *,
        metrics: Metrics,
        tracing: Tracing,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._producer = producer
        self._dead_letters = dead_letters
        self._deltas = deltas
        self._metrics = metrics
        self._tracing = tracing
        self._clock = clock

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
        in_flight = record_of(request)
        if error is not None:
            letter = self._unwritten(in_flight, in_flight.route.topic, error)
            request.overrule(Failure(letter.code, letter.message))
        elif request.failed and (failure := internal_failure(request)) is not None:
            self._dead_letters.add(DeadLetter(in_flight, failure.code, failure.message, failure.attempts))
        else:
            in_flight.committed_offset.complete(in_flight)

    async def refuse(self, refused: Sequence[Refused]) -> None:
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
        in_flight = refused.in_flight
        if refused.dead_letter or refused.route is None:
            self._dead_letters.add(DeadLetter(in_flight, refused.error.code, str(refused.error)))
        elif error is not None:
            return self._unwritten(in_flight, refused.route.topic, error).code
        else:
            in_flight.committed_offset.complete(in_flight)
        return refused.error.code

    def _unwritten(self, in_flight: InFlightRecord, topic: str, error: Exception) -> DeadLetter:
        self._metrics.replies_unwritten.add(1, _UNWRITTEN.get(type(error), Unwritten.REFUSED))
        why = f"the reply could not be written to {topic}: {type(error).__name__}"
        letter = DeadLetter(in_flight, Code.INTERNAL, why)
        self._dead_letters.add(letter)
        return letter
