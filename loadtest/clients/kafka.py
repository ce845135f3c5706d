"""Send queries through Kafka, collect their replies, and account for each."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from aggregator.errors import ungrouped
from loadtest.clients.kafka_connection import BATCH_BYTES, Connection, KafkaRunError, connected
from loadtest.clients.messages import NO_WISHES, Format, Header, UnreadableReply, Wishes, answers, record, reply
from loadtest.clients.pace import paced
from loadtest.tally import Tally

DEFAULT_REQUEST_TOPIC = "embed.requests.v1"
DEFAULT_REPLY_TOPIC = "embed.replies.v1"
CORRELATION_HEADER = "kafka_correlationId"
_REPLY_TOPIC_HEADER = "kafka_replyTopic"
_CHUNK = 500
_POLL_MS = 100


@dataclass(frozen=True, slots=True)
class KafkaRun:
    """One run's way through Kafka.

    `reply_topic`: when it is not the default one, each request names it. `rate` is in queries per second, None for
    as many as go. Once all is sent the run gives up when no reply has come for `timeout_s`; after the last one it
    reads on for `linger_s`, for duplicates. `client` goes to the Kafka client as it is (security_protocol …).
    """

    bootstrap: str
    request_topic: str = DEFAULT_REQUEST_TOPIC
    reply_topic: str = DEFAULT_REPLY_TOPIC
    style: Format = Format.PROTOBUF
    wishes: Wishes = NO_WISHES
    rate: float | None = None
    timeout_s: float = 60.0
    linger_s: float = 0.5
    client: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def run(texts: Sequence[str], tally: Tally, plan: KafkaRun, on_progress: Callable[[], None]) -> None:
    """Send `texts`, one query each, and record in `tally` what comes of each; `on_progress` is called often.

    Raises KafkaRunError.
    """
    try:
        async with connected(plan.bootstrap, plan.request_topic, plan.reply_topic, plan.client) as connection:
            await _Exchange(texts, tally, plan, on_progress).run(connection)
    except KafkaError as error:
        raise KafkaRunError(f"Kafka at {plan.bootstrap} failed: {error}") from error


class _Exchange:
    """Queries on their way and replies on theirs. A query's number travels in its correlation id."""

    def __init__(self, texts: Sequence[str], tally: Tally, plan: KafkaRun, on_progress: Callable[[], None]) -> None:
        self._texts = texts
        self._tally = tally
        self._plan = plan
        self._on_progress = on_progress
        self._run_id = secrets.token_hex(4)
        self._active_s = time.monotonic()
        self._all_sent = False
        self._routing: list[Header] = []
        if plan.reply_topic != DEFAULT_REPLY_TOPIC:
            self._routing.append((_REPLY_TOPIC_HEADER, plan.reply_topic.encode()))

    async def run(self, connection: Connection) -> None:
        """Until every query is answered, or none has been for too long."""
        with ungrouped(KafkaError, KafkaRunError):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send_all(connection), name="send")
                tasks.create_task(self._collect(connection.consumer), name="collect")

    async def _send_all(self, connection: Connection) -> None:
        topic, producer = self._plan.request_topic, connection.producer
        partitions = cycle(connection.request_partitions)
        consumer: list[asyncio.Future[Any]] = []
        async for numbers in paced(len(self._texts), self._plan.rate, _CHUNK):
            batch = producer.create_batch()
            for number in numbers:
                if not self._append(batch, number):
                    consumer.append(await producer.send_batch(batch, topic, partition=next(partitions)))
                    batch = producer.create_batch()
                    if not self._append(batch, number):
                        raise KafkaRunError(f"line {number} is longer than a Kafka batch of {BATCH_BYTES} bytes")
            consumer.append(await producer.send_batch(batch, topic, partition=next(partitions)))
            self._on_progress()
        await asyncio.gather(*consumer)
        self._all_sent = True

    def _append(self, batch: Any, number: int) -> bool:
        """Whether there was room for the query in the batch."""
        request_id = f"{self._run_id}-{number}"
        value, headers = record(self._texts[number], request_id, self._plan.style, self._plan.wishes)
        headers += [*self._routing, (CORRELATION_HEADER, request_id.encode())]
        key = str(number).encode()
        if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
            return False
        self._active_s = time.monotonic()
        self._tally.record_sent(number, self._active_s)
        return True

    async def _collect(self, consumer: AIOKafkaConsumer) -> None:
        plan, tally = self._plan, self._tally
        while True:
            received = await consumer.getmany(timeout_ms=_POLL_MS)
            now_s = time.monotonic()
            for records in received.values():
                for each in records:
                    self._read(each, now_s)
            self._on_progress()
            quiet_s = now_s - self._active_s
            if tally.complete and quiet_s > plan.linger_s:
                return
            if self._all_sent and quiet_s > plan.timeout_s:
                return

    def _read(self, received: Any, now_s: float) -> None:
        """Record one reply; those to other runs pass by."""
        headers = dict(received.headers)
        correlation = headers.get(CORRELATION_HEADER, b"").decode(errors="replace")
        run_id, _, digits = correlation.partition("-")
        if run_id != self._run_id:
            return
        number = int(digits)
        self._active_s = now_s
        try:
            response = reply(received.value, headers.get("content-type", b""))
        except UnreadableReply:
            self._tally.mismatched += 1
            return
        names_another = self._plan.style is not Format.TEXT and response.request_id != correlation
        if names_another or received.key != str(number).encode():
            self._tally.mismatched += 1
        self._tally.record_answer(number, answers(response)[0], now_s)
