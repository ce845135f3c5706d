"""Connect to Kafka so that no reply is missed: a topic read from its end, before anything is sent to the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code

BATCH_BYTES = 256 * 1024
_METADATA_TIMEOUT_S = 10.0
_POLL_S = 0.1


class KafkaRunError(Exception):
    """The broker or a topic cannot be used; the message says which."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A producer for a topic of these partitions, and a consumer that stands at the end of another."""

    producer: AIOKafkaProducer
    request_partitions: list[int]
    consumer: AIOKafkaConsumer


@asynccontextmanager
async def connected(
    bootstrap: str, request_topic: str, reply_topic: str, client: Mapping[str, Any]
) -> AsyncGenerator[Connection]:
    """A connection to both topics; `client` goes to the Kafka client as it is. Raises KafkaRunError, KafkaError."""
    async with AsyncExitStack() as stack:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **client)
        stack.push_async_callback(admin.close)
        await admin.start()
        request_partitions = await partitions(admin, request_topic)
        reply_partitions = [TopicPartition(reply_topic, number) for number in await partitions(admin, reply_topic)]

        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=100, **client)
        stack.push_async_callback(consumer.stop)
        await consumer.start()
        consumer.assign(reply_partitions)
        await consumer.seek_to_end(*reply_partitions)

        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=BATCH_BYTES, **client
        )
        stack.push_async_callback(producer.stop)
        await producer.start()
        yield Connection(producer, request_partitions, consumer)


async def partitions(admin: AIOKafkaAdminClient, topic: str) -> list[int]:
    """The topic's partitions, once each has a leader. Raises KafkaRunError."""
    deadline_s = time.monotonic() + _METADATA_TIMEOUT_S
    while True:
        (found,) = await admin.describe_topics([topic])
        leaders = {each["partition"]: each["leader"] for each in found["partitions"]}
        if not found["error_code"] and leaders and min(leaders.values()) >= 0:
            return sorted(leaders)
        if time.monotonic() > deadline_s:
            reason = for_code(found["error_code"]).__name__ if found["error_code"] else "a partition has no leader"
            raise KafkaRunError(f"topic {topic} cannot be used: {reason}")
        await asyncio.sleep(_POLL_S)
