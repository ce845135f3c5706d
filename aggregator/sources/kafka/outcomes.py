"""Reply to records, and complete each once the broker has acknowledged its reply: the wire format of replies."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

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
from aggregator.sources.kafka.codec import Refused, record_of, reply_id
from aggregator.sources.kafka.committed_offset import InFlightRecord
from aggregator.sources.kafka.dead_letters import DeadLetter, DeadLetters
from aggregator.sources.kafka.deltas import Deltas
from aggregator.sources.kafka.records import OutgoingRecord, Producer
from aggregator.sources.wire.values import encode, encode_failure, internal_failure

_UNWRITTEN: dict[type[Exception], Unwritten] = {
    UnknownTopicOrPartitionError: Unwritten.NOT_THERE,
    TopicAuthorizationFailedError: Unwritten.FORBIDDEN,
    MessageSizeTooLargeError: Unwritten.TOO_LARGE,
    RecordTooLargeError: Unwritten.TOO_LARGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """A record is completed by a reply, a dead letter, or both. A reply that Kafka refuses becomes a dead letter."""

    settings: KafkaSettings
    producer: Producer
    dead_letters: DeadLetters
    deltas: Deltas
    metrics: Metrics
    tracing: Tracing
    clock: Callable[[], float]

    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        """Reply to completed requests and complete their records; a reply that cannot be written becomes a dead letter.

        Requests that come after the producer was closed are left to the next consumer of their records.
        """
        live = [request for request in requests if not record_of(request).committed_offset.fenced]
        last_deltas = self.deltas.end(live)
        left = dict.fromkeys(requests)
        if live:
            with contextlib.suppress(ProducerClosed), self.tracing.send(self.settings.reply_topic, len(live)):
                replies = encode_replies(live, self.settings.group_id, self.clock())
                async for delivered in self.producer.send(replies):
                    for position, error in delivered:
                        self._free_offset(live[position], replies[position], error)
                        del left[live[position]]
                    yield [live[position] for position, _ in delivered]
                async for delivered in self.producer.send(last_deltas):
                    self.deltas.delivered([error for _, error in delivered])
        if left:
            yield tuple(left)

    def _free_offset(self, request: Request, reply: OutgoingRecord, error: Exception | None) -> None:
        in_flight = record_of(request)
        if error is not None:
            letter = self._unwritten(in_flight, reply, error)
            request.overrule(Failure(letter.code, letter.message))
        elif request.failed and (failure := internal_failure(request)) is not None:
            self.dead_letters.add(DeadLetter(in_flight, failure.code, failure.message, failure.attempts))
        else:
            in_flight.committed_offset.complete(in_flight)

    async def refuse(self, refused: Sequence[Refused]) -> None:
        """Reply to records that are no requests where their route is known; dead-letter those that cannot be read."""
        started_s = self.clock()
        answered = [each for each in refused if each.route is not None]
        codes: Counter[Code] = Counter()
        for each in refused:
            if each.route is None:
                codes[self._refusal_ended(each, None, None)] += 1
        with contextlib.suppress(ProducerClosed):
            replies = [encode_refusal(each, self.settings.group_id) for each in answered]
            async for delivered in self.producer.send(replies):
                for position, error in delivered:
                    codes[self._refusal_ended(answered[position], replies[position], error)] += 1
        self.metrics.answered(KAFKA, codes, [self.clock() - started_s] * codes.total())

    def _refusal_ended(self, refused: Refused, reply: OutgoingRecord | None, error: Exception | None) -> Code:
        in_flight = refused.in_flight
        if refused.dead_letter or reply is None:
            self.dead_letters.add(DeadLetter(in_flight, refused.error.code, str(refused.error)))
        elif error is not None:
            return self._unwritten(in_flight, reply, error).code
        else:
            in_flight.committed_offset.complete(in_flight)
        return refused.error.code

    def _unwritten(self, in_flight: InFlightRecord, reply: OutgoingRecord, error: Exception) -> DeadLetter:
        reason = _UNWRITTEN.get(type(error), Unwritten.REFUSED)
        self.metrics.replies_unwritten.add(1, reason)
        why = f"the reply could not be written to {reply.topic}: {type(error).__name__}"
        curable = reason is not Unwritten.TOO_LARGE
        if not curable:
            why += f" of {len(reply.value or b'')} bytes; raise that topic's max.message.bytes, or ask for less at once"
        letter = DeadLetter(in_flight, Code.INTERNAL, why, reply=reply if curable else None)
        self.dead_letters.add(letter)
        return letter


def encode_replies(requests: Sequence[Request], group_id: str, now_s: float = 0.0) -> list[OutgoingRecord]:
    """The reply of a consumer group to each completed request, in its format, to its route, under its key.

    `now_s`: when the generations among them were complete.
    """
    replies: list[OutgoingRecord] = []
    for request in requests:
        record = record_of(request)
        route = record.route
        identity = reply_id(record, request.request_id, group_id)
        value = encode(request, identity, now_s, as_json=route.json)
        replies.append(OutgoingRecord(route.topic, route.partition, record.key, value, route.headers))
    return replies


def encode_refusal(refused: Refused, group_id: str) -> OutgoingRecord:
    """The reply to a record that did not become a request; it must have a route."""
    route = refused.route
    assert route is not None, "A record without a route was to be answered. This is a bug."
    record = refused.in_flight
    identity = reply_id(record, refused.request_id, group_id)
    failure = Failure.of(refused.error)
    value = encode_failure(refused.request_id, failure, identity, generates=refused.generates, as_json=route.json)
    return OutgoingRecord(route.topic, route.partition, record.key, value, route.headers)
