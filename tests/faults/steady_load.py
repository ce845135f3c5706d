"""A producer that never stops: records with unique keys, and for each what must become of it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from aggregator.sources.kafka.aiokafka_internals import abandon_producer, space_metadata_updates
from loadtest.kit.traffic import paced
from loadtest.questions import bundled_questions
from tests.support.kafka_client import Sent, query

_FOREVER = 10**9
_MOST_WAITING = 20_000
_PATIENCE_MS = 180_000
_METADATA_AGE_MS = 2_000


@dataclass(frozen=True, slots=True)
class Intent:
    """What is to become of a record: a reply with one of `codes`, and a dead letter where `dead`.

    `text` is set where the reply must hold its vector. `may_die`: codes with which it may be dead-lettered instead,
    because of what the row breaks. `clock_s`: how far its producer's clock is ahead of the broker's.
    """

    text: str | None = None
    codes: frozenset[str] = frozenset({"OK"})
    dead: bool = False
    may_die: frozenset[str] = frozenset()
    clock_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A record to send, and what is to become of it; its key, which must be unique, is given to it."""

    sent: Sent
    intent: Intent


Maker = Callable[[int, str], Planned]
"""Makes the n-th record, whose request id and key are given."""

_QUESTIONS = bundled_questions()


def question(number: int, request_id: str) -> Planned:
    text = _QUESTIONS[number % len(_QUESTIONS)]
    return Planned(query(text, request_id), Intent(text))


@dataclass
class SteadyLoad:
    """Sends to `topic` until stopped; what the broker acknowledged is in `acknowledged`, by key."""

    bootstrap: str
    topic: str
    intents: dict[bytes, Intent] = field(default_factory=dict[bytes, Intent])
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict[bytes, tuple[int, int]])
    unsure: int = 0
    _waiting: set[asyncio.Future[Any]] = field(default_factory=set[Any])
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _run_id: str = field(default_factory=lambda: secrets.token_hex(3))
    _producer: Any = None

    async def start(self) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=True,
            linger_ms=5,
            max_request_size=16 * 1024 * 1024,
            request_timeout_ms=_PATIENCE_MS,
            metadata_max_age_ms=_METADATA_AGE_MS,
        )
        space_metadata_updates(self._producer)
        await self._producer.start()

    async def close(self) -> None:
        """Disconnect at once, with or without a broker; `flush` waits for the word on all that was sent."""
        if self._producer is not None:
            await abandon_producer(self._producer)

    async def run(self, rate: float, make: Maker = question) -> None:
        async for numbers in paced(_FOREVER, rate, 100):
            await self.send(len(numbers), make)

    async def send(self, count: int, make: Maker = question, partition: int | None = None) -> None:
        """Send `count` more; waits while too many are not acknowledged."""
        for number in itertools.islice(self._numbers, count):
            while len(self._waiting) >= _MOST_WAITING:
                await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
            request_id = f"{self._run_id}-{number}"
            planned, key = make(number, request_id), request_id.encode()
            self.intents[key] = planned.intent
            headers = [(name, value) for name, value in planned.sent.headers]
            try:
                word = await self._producer.send(
                    self.topic,
                    value=planned.sent.value,
                    key=key,
                    headers=headers,
                    partition=partition,
                    timestamp_ms=int((time.time() + planned.intent.clock_s) * 1000),
                )
            except KafkaError:
                self.unsure += 1
                continue
            self._waiting.add(word)
            word.add_done_callback(lambda done, key=key: self._heard(key, done))

    async def flush(self) -> None:
        while self._waiting:
            await asyncio.wait(self._waiting)

    def _heard(self, key: bytes, word: asyncio.Future[Any]) -> None:
        self._waiting.discard(word)
        if word.cancelled() or word.exception() is not None:
            self.unsure += 1
            return
        place = word.result()
        self.acknowledged[key] = (place.partition, place.offset)
