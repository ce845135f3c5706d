"""Embedding through Kafka: replies by correlation, duplicates dropped, dead letters raised."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from typing_extensions import Self

from tokenbatch_client import requests, results
from tokenbatch_client.errors import DeadlineExceeded, TokenbatchError
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb

_PROTOBUF = [("content-type", b"application/x-protobuf")]
_POLL_MS = 200
_REMEMBERED = 100_000
"""Reply ids by which duplicates are known: of some minutes at the rate of one consumer."""


class DeadLetter(TokenbatchError):
    """The record was not a request, or failed for good; it is kept on the dead-letter topic."""

    remedy = "Read the dead letter, correct the cause, and put it back with `python -m aggregator redrive`."


class KafkaClient:
    """One producer, and a consumer of all replies that come from now on.

    `dead_letters`: the topic of records that failed; empty: REQUESTS-dlt. Other arguments are aiokafka's, such as
    `security_protocol`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        requests_topic: str = "embed.requests.v1",
        replies_topic: str = "embed.replies.v1",
        dead_letters: str = "",
        **connection: Any,
    ) -> None:
        self._requests_topic = requests_topic
        self._topics = (replies_topic, dead_letters or f"{requests_topic}-dlt")
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, **connection)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **connection)
        self._seen: dict[str, None] = {}

    async def __aenter__(self) -> Self:
        await self._producer.start()
        await self._consumer.start()
        places: list[TopicPartition] = []
        for topic in self._topics:
            places += [TopicPartition(topic, number) for number in await self._producer.partitions_for(topic)]
        self._consumer.assign(places)
        await self._consumer.seek_to_end(*places)
        for place in places:
            await self._consumer.position(place)  # known before anything is sent
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()
        await self._producer.stop()

    async def submit(
        self, texts: Sequence[requests.Input], *, key: str = "", timeout_s: float = 60.0, **options: Any
    ) -> AsyncIterator[results.Embedding]:
        """A row a text, in completion order; a record each. One submit runs at a time.

        Raises DeadlineExceeded when replies are missing after `timeout_s`, and DeadLetter for a record that became one.
        """
        deadline_s = time.monotonic() + timeout_s
        waiting = {str(uuid.uuid4()): index for index in range(len(texts))}
        for request_id, index in waiting.items():
            request = requests.embed([texts[index]], request_id=request_id, **options)
            await self._producer.send(
                self._requests_topic,
                request.SerializeToString(),
                key=(key or request_id).encode(),
                headers=[*_PROTOBUF, ("kafka_correlationId", request_id.encode())],
            )
        await self._producer.flush()
        while waiting:
            if time.monotonic() >= deadline_s:
                raise DeadlineExceeded(f"{len(waiting)} of {len(texts)} replies are missing", "DEADLINE_EXCEEDED")
            for records in (await self._consumer.getmany(timeout_ms=_POLL_MS)).values():
                for record in records:
                    row = self._row(record, waiting)
                    if row is not None:
                        yield row
            await asyncio.sleep(0)

    def _row(self, record: Any, waiting: dict[str, int]) -> Any:
        """The row of a reply to one of ours; None for another's, or a duplicate. Raises DeadLetter."""
        headers = dict(record.headers)
        request_id = headers.get("kafka_correlationId", b"").decode(errors="replace")
        index = waiting.get(request_id)
        if index is None:
            return None
        if record.topic != self._topics[0]:
            code = headers.get("dlt-error-code", b"").decode(errors="replace") or "DATA_LOSS"
            why = headers.get("dlt-error-message", b"").decode(errors="replace")
            raise DeadLetter(f"input {index}: {why or code}", code)
        reply = pb.EmbedResponse.FromString(record.value)
        if reply.reply_id in self._seen:
            return None
        self._seen[reply.reply_id] = None
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        del waiting[request_id]
        found = results.embeddings(reply, 1).rows[0]
        return results.Embedding(index, found.raw, found.token_count, found.error)
