"""Complete each record once the broker has acknowledged its reply or its dead letter; write its progress before."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial

from aiokafka.errors import (
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from aggregator.errors import Code
from aggregator.observability.metrics import Metrics, Unwritten
from aggregator.request.request import KAFKA, Failure, Request
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.answered import EXPIRED, Answer
from aggregator.sources.kafka.decode import Refused, ReplyRoute, origin_of, record_of, reply_id
from aggregator.sources.kafka.offsets import Header, InFlightRecord
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.sources.kafka.progress import Progress
from aggregator.sources.wire.turns import encoded
from aggregator.sources.wire.values import DEAD_LETTER_SUFFIX, encode, encode_failure, internal_failure

_LOG = logging.getLogger(__name__)
_PAUSE_S = 1.0  # people mend a full or missing topic
_MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Of the records of a topic's dead letters that wait: above it the topic pauses."""
_TRIED_AT_ONCE = 1000  # dead letters; 10 ms of the event loop
_MAX_KEPT_BYTES = 32 * 1024  # of key and headers, once the value was too large
_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)
_UNWRITTEN: dict[type[Exception], Unwritten] = {
    UnknownTopicOrPartitionError: Unwritten.NOT_THERE,
    TopicAuthorizationFailedError: Unwritten.FORBIDDEN,
    MessageSizeTooLargeError: Unwritten.TOO_LARGE,
    RecordTooLargeError: Unwritten.TOO_LARGE,
}
_REPLAY: Header = ("replay", b"true")
"""The header of a reply that may have come before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """A record is completed by a reply, a dead letter, or both. A reply that Kafka refuses becomes a dead letter.

    `on_room`: what refused records held is free.
    """

    settings: KafkaSettings
    producer: KafkaProducer
    dead_letters: DeadLetters
    progress: Sequence[Progress]
    metrics: Metrics
    clock: Callable[[], float]
    on_room: Callable[[], None]

    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        """Reply to completed requests and complete their records; a reply that cannot be written becomes a dead letter.

        Requests that come after the producer was closed are left to the next consumer of their records.
        """
        live = [request for request in requests if not record_of(request).committed_offset.fenced]
        last = [(progress, await progress.end(live)) for progress in self.progress]
        left = dict.fromkeys(requests)
        if live:
            with contextlib.suppress(ProducerClosed):
                encode_one = partial(encode_reply, group_id=self.settings.group_id, now_s=self.clock())
                replies = await encoded(live, encode_one, [origin_of(request).route.json for request in live])
                for request in live:
                    request.free_vectors()
                async for delivered in self.producer.send(replies):
                    for position, error in delivered:
                        self._complete_or_dead_letter(live[position], replies[position], error)
                        del left[live[position]]
                        if error is None:
                            replies[position].value = None  # the others may wait for long
                    yield [live[position] for position, _ in delivered]
                for progress, records in last:
                    async for delivered in self.producer.send(records):
                        progress.delivered([error for _, error in delivered])
        if left:
            yield tuple(left)

    def _complete_or_dead_letter(self, request: Request, reply: OutgoingRecord, error: Exception | None) -> None:
        in_flight = record_of(request)
        if error is not None:
            letter = self._unwritten(in_flight, reply, error)
            request.overrule(Failure(letter.code, letter.message))
        elif request.failed and (failure := internal_failure(request)) is not None:
            self.dead_letters.add(DeadLetter(in_flight, failure.code, failure.message, failure.attempts))
        else:
            in_flight.committed_offset.complete(in_flight, _answer_of(request))

    async def refuse(self, refused: Sequence[Refused]) -> None:
        """Reply to records that are no requests where their route is known; dead-letter undecodable ones."""
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
                self.on_room()
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


_answer = lru_cache(maxsize=64)(Answer)  # few differ, and many records wait with theirs


def _answer_of(request: Request) -> Answer | None:
    """How a record was answered, where a replay can be answered the same: by a revision, or that it expired."""
    if request.failed:
        return EXPIRED if request.code is Code.DEADLINE_EXCEEDED else None
    revision = request.kind.answered_by(request)
    return _answer(request.model, revision) if revision else None


def encode_reply(request: Request, group_id: str, now_s: float = 0.0) -> OutgoingRecord:
    """The reply of a consumer group to a completed request, in its format, to its route, under its key.

    `now_s`: when its generation, if it is one, was complete.
    """
    origin = origin_of(request)
    record, route = origin.in_flight, origin.route
    identity = reply_id(record, request.request_id, group_id)
    value = encode(request, identity, now_s, as_json=route.json)
    return _to_route(request, record, route, value, identity=identity, group_id=group_id, replay=request.replay)


def encode_refusal(refused: Refused, group_id: str) -> OutgoingRecord:
    """The reply to a record that did not become a request; it must have a route."""
    route = refused.route
    assert route is not None, "A record without a route was to be answered. This is a bug."
    record = refused.in_flight
    identity = reply_id(record, refused.request_id, group_id)
    failure = Failure.of(refused.error)
    value = encode_failure(
        refused.request_id, failure, identity, kind=refused.kind, as_json=route.json, replay=record.replay
    )
    return _to_route(refused, record, route, value, identity=identity, group_id=group_id, replay=record.replay)


def _to_route(
    answered: Request | Refused,
    record: InFlightRecord,
    route: ReplyRoute,
    value: bytes,
    *,
    identity: str,
    group_id: str,
    replay: bool,
) -> OutgoingRecord:
    headers = [*route.headers, _REPLAY] if replay else route.headers
    if route.envelope is not None:
        named = {"reply_id": identity, "group_id": group_id, "request_id": answered.request_id}
        value, headers = route.envelope.reply(value, headers, kind=answered.kind, **named)
    key = record.key
    made_key = identity.encode() if key is None else b""
    return OutgoingRecord(route.topic, route.partition, key, value, headers, record.timestamp, made_key)


@dataclass(slots=True, eq=False)
class DeadLetter:
    """A record to keep, and why; `since_unix_s` is the time of its first failure.

    `reply`: the refused one, if a later attempt may succeed. `delayed`: the dead letter was refused as well.
    `omits_value`: the record was too large for the dead-letter topic. Its size and SHA-256 go instead of its value, and
    key and headers only if they are small.
    """

    in_flight: InFlightRecord
    code: Code
    message: str
    attempts: int = 1
    since_unix_s: float = 0.0
    omits_value: bool = False
    reply: OutgoingRecord | None = None
    delayed: bool = False

    def record(self, group_id: str) -> OutgoingRecord:
        value, key = self.in_flight.value, self.in_flight.key
        added = {
            "dlt-original-topic": self.in_flight.topic,
            "dlt-original-partition": self.in_flight.partition,
            "dlt-original-offset": self.in_flight.offset,
            "dlt-original-timestamp": self.in_flight.timestamp,
            "dlt-original-consumer-group": group_id,
            "dlt-error-code": self.code.name,
            "dlt-error-message": self.message,
            "dlt-attempts": self.attempts,
            "dlt-first-failure-time": datetime.fromtimestamp(self.since_unix_s, UTC).isoformat(timespec="milliseconds"),
        }
        kept = [header for header in self.in_flight.headers if header[0] not in added]
        if self.omits_value:
            added["dlt-value-omitted"] = "true"
            omitted = value or b""
            added["dlt-value-size"] = len(omitted)
            added["dlt-value-sha256"] = hashlib.sha256(omitted).hexdigest()
            value = b""
            if len(key or b"") + sum(len(name) + len(content or b"") for name, content in kept) > _MAX_KEPT_BYTES:
                added["dlt-headers-omitted"] = "true"
                key, kept = None, []
        headers: list[Header] = [*kept, *((name, str(content).encode()) for name, content in added.items())]
        topic, at_ms = self.in_flight.topic + DEAD_LETTER_SUFFIX, self.in_flight.timestamp
        return OutgoingRecord(topic, None, key, value, headers, timestamp_ms=at_ms)


@dataclass(eq=False)
class DeadLetters:
    """Writes dead letters in the background, many of a topic at a time.

    A record is completed once its dead letter is acknowledged. A dead letter that cannot be written holds the commits
    of its record's partition until it can, or until the reply that it replaces is written after all: each further
    try begins with the reply. A topic whose waiting ones hold much is `full`: it is paused, and no other is.
    `on_change`: a topic is full, or no longer, or what written ones held is free.
    """

    settings: KafkaSettings
    producer: KafkaProducer
    metrics: Metrics
    _: KW_ONLY
    on_change: Callable[[], None]
    wall_clock: Callable[[], float] = time.time
    full: frozenset[str] = frozenset()
    _waiting: dict[str, list[DeadLetter]] = field(default_factory=dict)
    _waiting_bytes: Counter[str] = field(default_factory=Counter)
    _writing: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def add(self, letter: DeadLetter) -> None:
        topic = letter.in_flight.topic
        letter.since_unix_s = self.wall_clock()
        self._waiting.setdefault(topic, []).append(letter)
        self._waiting_bytes[topic] += letter.in_flight.held_bytes
        if topic not in self._writing:
            self._writing[topic] = asyncio.create_task(self._write_all(topic), name=f"dead letters of {topic}")
        self._watch_full()

    async def written(self) -> None:
        while self._writing:
            await asyncio.wait(self._writing.values())

    async def _write_all(self, topic: str) -> None:
        try:
            while waiting := self._waiting.pop(topic, None):
                live = [each for each in waiting if not each.in_flight.committed_offset.fenced]  # others keep the rest
                tried, rest = live[:_TRIED_AT_ONCE], live[_TRIED_AT_ONCE:]
                failed = await self._write(tried) if tried else []
                if left := rest + self._waiting.get(topic, []) + failed:
                    self._waiting[topic] = left
                self._waiting_bytes[topic] = sum(letter.in_flight.held_bytes for letter in left)
                self._watch_full()
        except ProducerClosed:
            pass  # the next consumer of these records finds the same
        finally:
            del self._writing[topic]

    async def _write(self, letters: list[DeadLetter]) -> list[DeadLetter]:
        """Write dead letters; returns those to retry, after a pause if only time can help."""
        topic = letters[0].in_flight.topic + DEAD_LETTER_SUFFIX
        left = dict.fromkeys(letters)
        reason: Exception | None = None
        try:
            async for letter in self._replied_after_all(letters):
                letter.in_flight.committed_offset.complete(letter.in_flight)
                del left[letter]
            letters = list(left)
            async for delivered in self.producer.send([letter.record(self.settings.group_id) for letter in letters]):
                for position, error in delivered:
                    letter = letters[position]
                    if error is None:
                        self.metrics.dead_letters.add(1, letter.code.name)
                        letter.in_flight.committed_offset.complete(letter.in_flight)
                        del left[letter]
                    elif isinstance(error, _TOO_LARGE) and not letter.omits_value:
                        letter.omits_value = True
                    else:
                        reason = error
                self.on_change()
        except ProducerClosed:
            raise
        except Exception as unforeseen:  # noqa: BLE001 - after any error, what holds commits must not be lost
            reason = unforeseen
        if reason is not None:
            details = {"topic": topic, "count": len(left), "error": repr(reason)}
            _LOG.error("dead letters cannot be written, commits are held", extra=details)
            for letter in left:
                letter.delayed = True
            await asyncio.sleep(_PAUSE_S)
        return list(left)

    async def _replied_after_all(self, letters: list[DeadLetter]) -> AsyncIterator[DeadLetter]:
        delayed = [(letter, letter.reply) for letter in letters if letter.delayed and letter.reply is not None]
        if delayed:
            async for delivered in self.producer.send([reply for _, reply in delayed]):
                for position, error in delivered:
                    if error is None:
                        yield delayed[position][0]
                self.on_change()

    def _watch_full(self) -> None:
        full = frozenset(topic for topic, held in self._waiting_bytes.items() if held >= _MOST_WAITING_BYTES)
        if full != self.full:
            self.full = full
            self.on_change()
