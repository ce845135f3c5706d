"""Write records that could not be read, routed or processed to the dead-letter topic, with the reason."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime

from aiokafka.errors import MessageSizeTooLargeError, ProducerClosed, RecordTooLargeError

from aggregator.errors import Code
from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.committed_offset import InFlightRecord
from aggregator.sources.kafka.records import Header, OutgoingRecord, Producer
from aggregator.sources.wire.values import DEAD_LETTER_SUFFIX

_LOG = logging.getLogger(__name__)
_PAUSE_S = 1.0
_MOST_WAITING = 1000
_MAX_KEPT_BYTES = 32 * 1024
_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)


@dataclass(slots=True, eq=False)
class DeadLetter:
    """A record to keep, and why; `since_unix_s` is the time of its first failure.

    `reply`: what Kafka refused, if a later attempt may succeed. `delayed`: the dead letter was refused as well.
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
        return OutgoingRecord(self.in_flight.topic + DEAD_LETTER_SUFFIX, None, key, value, headers)


@dataclass(eq=False)
class DeadLetters:
    """Writes dead letters in the background, all that wait for a topic at a time.

    A record is completed once its dead letter is acknowledged. One that cannot be written holds the commits of
    its record's partition until it can, or until the reply that it replaces is written after all: each further try
    begins with the reply. A topic with many that wait is `full`: it is paused, and no other is.
    """

    settings: KafkaSettings
    producer: Producer
    metrics: Metrics
    _: KW_ONLY
    on_full_changed: Callable[[], None]
    wall_clock: Callable[[], float] = time.time
    full: frozenset[str] = frozenset()
    _waiting: dict[str, list[DeadLetter]] = field(default_factory=dict)
    _writing: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def add(self, letter: DeadLetter) -> None:
        topic = letter.in_flight.topic
        letter.since_unix_s = self.wall_clock()
        self._waiting.setdefault(topic, []).append(letter)
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
                failed = await self._write(live) if live else []
                if failed:
                    self._waiting[topic] = failed + self._waiting.get(topic, [])
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

    def _watch_full(self) -> None:
        full = frozenset(topic for topic, letters in self._waiting.items() if len(letters) >= _MOST_WAITING)
        if full != self.full:
            self.full = full
            self.on_full_changed()
