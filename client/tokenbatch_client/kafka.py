"""Requests through Kafka: replies by correlation, duplicates dropped, dead letters raised."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import cycle
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, UnknownTopicOrPartitionError
from google.protobuf import json_format
from google.protobuf.message import Message
from typing_extensions import Self

from tokenbatch_client import requests, results
from tokenbatch_client.errors import DeadlineExceeded, TokenbatchError
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb

REQUESTS, REPLIES = "embed.requests.v1", "embed.replies.v1"
PROTOBUF, JSON = ("content-type", b"application/x-protobuf"), ("content-type", b"application/json")
_CORRELATION = "kafka_correlationId"
_BATCH_BYTES = 256 * 1024
_METADATA_TIMEOUT_S = 10.0
_POLL_S = 0.1
_FLUSH_S = 60.0
"""What was sent and not flushed has so long at the end to be written, as by submit's time-out."""
_STOP_S = 3.0
"""What is not written by then is given up: an idempotent producer tries for ever, and its stop waits for it."""
_LAST_S = 0.1
"""A request to a broker that is away is cut off after so long."""
_M = TypeVar("_M", bound=Message)


class DeadLetter(TokenbatchError):
    """The record was not a request, or failed for good; it is kept on the dead-letter topic."""

    remedy = "Read the dead letter, correct the cause, and put it back with `python -m aggregator redrive`."


class TopicError(TokenbatchError):
    """A topic is missing, or may not be used."""

    remedy = "Create the topic, or name another one."


Request = tuple[str, bytes, Sequence[tuple[str, bytes]]]
"""A request's id, its value, and headers that say what the value is: PROTOBUF, or JSON."""


class Reply(NamedTuple):
    """A record of the topic of replies, or of dead letters, and the id of the request that it answers."""

    request_id: str
    record: Any
    headers: dict[str, bytes]

    def read(self, kind: type[_M]) -> _M:
        """The message in it. Raises DecodeError, or json_format.ParseError."""
        if self.headers.get("content-type") == JSON[1]:
            return json_format.Parse(self.record.value, kind())
        return kind.FromString(self.record.value)

    def raise_dead(self, what: str) -> None:
        """Raise DeadLetter if it is one. `what` begins the message."""
        if "dlt-error-code" in self.headers:
            code = self.headers["dlt-error-code"].decode(errors="replace")
            raise DeadLetter(what + self.headers.get("dlt-error-message", b"").decode(errors="replace"), code)


class KafkaClient:
    """One producer, and a consumer of all replies and dead letters that come from now on.

    `dead_letters`: the topic of records that failed; None: REQUESTS-dlt; empty: not read. Other arguments are
    aiokafka's, such as `security_protocol`. Raises KafkaError where a broker fails.

    The end of `async with` writes what was sent and not flushed, for a minute at most, and raises DeadlineExceeded if
    that is not enough. After an error it waits three seconds.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        requests_topic: str = REQUESTS,
        replies_topic: str = REPLIES,
        dead_letters: str | None = None,
        **connection: Any,
    ) -> None:
        self._topic = requests_topic
        self._read = [replies_topic, f"{requests_topic}-dlt" if dead_letters is None else dead_letters]
        self._headers = [("kafka_replyTopic", replies_topic.encode())] if replies_topic != REPLIES else []
        self._connection: dict[str, Any] = {"bootstrap_servers": bootstrap, **connection}
        self._open = AsyncExitStack()
        self._writes: list[Any] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            self._producer: Any = AIOKafkaProducer(
                enable_idempotence=True, max_batch_size=_BATCH_BYTES, **self._connection
            )
            opening.push_async_callback(self._stop)
            await self._producer.start()
            self._consumer: Any = AIOKafkaConsumer(fetch_max_wait_ms=int(_POLL_S * 1000), **self._connection)
            opening.push_async_callback(self._consumer.stop)
            await self._consumer.start()
            self._partitions = cycle(await self._partitions_of(self._topic))
            places = [
                TopicPartition(topic, number)
                for topic in filter(None, self._read)
                for number in await self._partitions_of(topic)
            ]
            self._consumer.assign(places)
            await self._consumer.seek_to_end(*places)
            for place in places:
                await self._consumer.position(place)  # known before anything is sent
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                await _by(time.monotonic() + _FLUSH_S, self.flush())
        finally:
            await self._open.aclose()

    async def submit(
        self, texts: Sequence[requests.Input], *, key: str = "", timeout_s: float = 60.0, **options: Any
    ) -> AsyncIterator[results.Embedding]:
        """A row a text, in completion order; a record each. One submit runs at a time.

        Raises InputError before anything is sent, DeadlineExceeded when records are not written or replies are missing
        after `timeout_s`, and DeadLetter for a record that became one.
        """
        deadline_s = time.monotonic() + timeout_s
        given = list(requests.listed("texts", texts))
        waiting = {str(uuid.uuid4()): index for index in range(len(given))}
        made = (requests.embed([given[index]], options, request_id, index) for request_id, index in waiting.items())
        records = [(each.request_id, each.SerializeToString(), [PROTOBUF]) for each in made]
        try:
            await _by(deadline_s, self.send(records, key=key))
            await _by(deadline_s, self.flush())
        except DeadlineExceeded:
            self._give_up()
            raise
        while waiting:
            if time.monotonic() >= deadline_s:
                raise DeadlineExceeded(f"{len(waiting)} of {len(given)} replies are missing", "DEADLINE_EXCEEDED")
            for reply in await self.receive():
                index = waiting.pop(reply.request_id, None)
                if index is not None:  # neither another's, nor one more of ours
                    reply.raise_dead(f"input {index}: ")
                    for row in results.rows(reply.read(pb.EmbedResponse), 1, index):
                        yield row

    async def send(self, records: Iterable[Request], *, key: str = "") -> None:
        """Send these; each record's key is its request's id where `key` is empty.

        Records of one key go to one partition, in their order. What became of them `flush` says.
        """
        batch, partition = self._producer.create_batch(), None
        for request_id, value, headers in records:
            given = (key or request_id).encode()
            if key and partition is None:
                partition = self._producer._partition(self._topic, None, None, None, given, None)  # noqa: SLF001
            told = [*headers, *self._headers, (_CORRELATION, request_id.encode())]
            record = {"timestamp": None, "key": given, "value": value, "headers": told}
            if batch.append(**record) is None:
                await self._write(batch, partition)
                batch = self._producer.create_batch()
                if batch.append(**record) is None:
                    raise MessageSizeTooLargeError(f"request {request_id} is longer than {_BATCH_BYTES} bytes")
        await self._write(batch, partition)

    async def flush(self) -> None:
        """Wait until all that was sent is written. Raises KafkaError."""
        writes, self._writes = self._writes, []
        await asyncio.gather(*writes)

    async def receive(self) -> list[Reply]:
        """The replies and dead letters of the next moment, whosever they are, in the order of each partition."""
        found: list[Reply] = []
        for records in (await self._consumer.getmany(timeout_ms=int(_POLL_S * 1000))).values():
            for record in records:
                headers = dict(record.headers)
                found.append(Reply(headers.get(_CORRELATION, b"").decode(errors="replace"), record, headers))
        return found

    async def _stop(self) -> None:
        """Stop the producer, with what it has not written if a broker does not answer."""
        try:
            await asyncio.wait_for(self._producer.flush(), _STOP_S)
        except asyncio.TimeoutError:  # the producer's own stop would wait without end, so this does what it does then
            self._give_up()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._producer._sender.close(), _LAST_S)  # noqa: SLF001
            await self._producer.client.close()
            self._producer._closed = True  # noqa: SLF001
        else:
            await self._producer.stop()

    def _give_up(self) -> None:
        """Nobody asks any more what became of what was sent."""
        for write in self._writes:
            write.cancel()
        self._writes = []

    async def _write(self, batch: Any, partition: int | None) -> None:
        number = next(self._partitions) if partition is None else partition
        self._writes.append(await self._producer.send_batch(batch, self._topic, partition=number))

    async def _partitions_of(self, topic: str) -> list[int]:
        try:
            found = await asyncio.wait_for(self._producer.partitions_for(topic), _METADATA_TIMEOUT_S)
        except (asyncio.TimeoutError, KafkaError) as error:
            why = type(error if isinstance(error, KafkaError) else UnknownTopicOrPartitionError()).__name__
            raise TopicError(f"topic {topic} cannot be used: {why}", "NOT_FOUND") from error
        return sorted(found)


async def _by(deadline_s: float, writing: Awaitable[None]) -> None:
    """Wait for what is written. Raises DeadlineExceeded: a broker that is away is tried for minutes."""
    try:
        await asyncio.wait_for(writing, max(0.0, deadline_s - time.monotonic()))
    except asyncio.TimeoutError as error:
        message = "the requests are not written: Kafka does not answer"
        raise DeadlineExceeded(message, "DEADLINE_EXCEEDED") from error
