"""All that is used of aiokafka though it is not public, each with its reason; checked against aiokafka 0.14.

docs/adr/0024-what-of-aiokafka-is-used.md lists the alternatives that were tried.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from itertools import chain
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from aggregator.errors import stray_cancellation_as

# ruff: noqa: SLF001

_STOP_S = 2.0  # a client that lost its broker would wait for it
_NO_ID = bytes(16)


class InvalidRecordError(kafka_errors.BrokerResponseError):  # type: ignore[misc]  # aiokafka has no types
    """The topic does not take the record: it is compacted, and the record has no key."""

    errno = 87
    message = "INVALID_RECORD"


_RETRIABLE = {
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    88: "UNSTABLE_OFFSET_COMMIT",
    89: "THROTTLING_QUOTA_EXCEEDED",
    100: "UNKNOWN_TOPIC_ID",
    103: "INCONSISTENT_TOPIC_ID",
}
"""Errors that Kafka calls retriable and aiokafka does not know: it took each for an unknown one."""


def know_errors() -> None:
    """Let aiokafka tell the errors apart that it does not know."""
    known = kafka_errors.kafka_errors
    for number, message in _RETRIABLE.items():
        fields = {"errno": number, "message": message, "retriable": True, "invalid_metadata": True}
        known.setdefault(number, type(message, (kafka_errors.BrokerResponseError,), fields))
    known.setdefault(InvalidRecordError.errno, InvalidRecordError)


know_errors()


def space_metadata_updates(user: Any) -> Any:
    """Let a consumer or producer keep its retry backoff between two requests for metadata; returns it.

    While a partition has no leader, both ask without a pause: thousands of times a second while all brokers are away.
    """
    client = user.client if hasattr(user, "client") else user._client
    update, loop = client._metadata_update, asyncio.get_running_loop()
    next_s = loop.time()

    async def update_when_due(*arguments: Any) -> Any:
        nonlocal next_s
        await asyncio.sleep(next_s - loop.time())
        try:
            return await update(*arguments)
        finally:
            next_s = loop.time() + client._retry_backoff

    client._metadata_update = update_when_due
    return user


def stray_cancellation_as_error() -> AbstractContextManager[None]:
    """Raise KafkaError for the CancelledError of a task of aiokafka.

    Its fetcher cancels the fetches of a closed consumer, and raises that where one of them has just failed.
    """
    return stray_cancellation_as(kafka_errors.KafkaError("a task of the client was cancelled"))


async def close_client(client: Any) -> None:
    """Close a client, even if its metadata task has failed: `close` alone would raise that and keep connections."""
    if client._sync_task is not None and client._sync_task.done():
        client._sync_task = None
    await client.close()


async def abandon_consumer(consumer: Any) -> None:
    """Disconnect a consumer whose `stop` raises or does not end: its tasks would keep it in the group.

    https://github.com/aio-libs/aiokafka/issues/659
    """
    coordinator = consumer._coordinator
    consumer._closed = True
    if coordinator is not None:
        tasks = (coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task)
        for task in [task for task in tasks if task is not None]:
            task.cancel()
            await asyncio.wait([task], timeout=1.0)
    if consumer._fetcher is not None:
        with contextlib.suppress(Exception), stray_cancellation_as_error():  # its task's error
            await consumer._fetcher.close()
    await close_client(consumer._client)


async def abandon_producer(producer: Any) -> None:
    """Disconnect a producer: `stop` waits for brokers that are away. Waiting writes fail with ProducerClosed."""
    producer._closed = True
    accumulator = producer._message_accumulator
    accumulator.fail_all(kafka_errors.ProducerClosed())
    for batch in chain(accumulator._pending_batches, *accumulator._batches.values()):
        if batch._drain_waiter.done():  # else asyncio complains that it was never retrieved
            batch._drain_waiter.exception()
    with contextlib.suppress(Exception):  # its task's error
        async with asyncio.timeout(_STOP_S):
            await close_client(producer.client)
            await producer._sender.close()


def forget_topic(producer: Any, topic: str) -> None:
    """Leave a topic out of what a producer asks brokers for: it would keep each name that it was ever asked for."""
    producer.client._topics.discard(topic)


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka has no types
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 3, 10  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType] - as theirs
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 3, 10
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class MetadataRequest(Request[_MetadataStruct]):  # type: ignore[misc]
    """Metadata in the first version with topic ids, since Kafka 2.8; aiokafka's own ends at version 5."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str], *, operations: bool = False) -> None:
        """`operations`: also what this client may do with each topic."""
        self._topics = topics
        self._operations = operations

    def build(self, request_struct_class: type[_MetadataStruct]) -> _MetadataStruct:
        topics: list[tuple[bytes, str, dict[int, bytes]]] = [(_NO_ID, name, {}) for name in self._topics]
        return request_struct_class(topics, False, False, self._operations, {})


async def topic_ids(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, str]:
    """The id of each topic in hexadecimal digits; empty where the broker has none or does not show it.

    Raises KafkaError.
    """
    try:
        response = await ask(admin, MetadataRequest(names))
    except (NotImplementedError, kafka_errors.IncompatibleBrokerVersion):
        return {}
    found = {name: topic_id for code, name, topic_id, *_ in response.topics if not code and topic_id != _NO_ID}
    return {name: topic_id.hex() for name, topic_id in found.items()}


async def ask(admin: AIOKafkaAdminClient, request: Any, node: int | None = None) -> Any:
    """The answer of a broker, any one unless it is named, to a request that the admin client does not have."""
    client: Any = admin._client  # pyright: ignore[reportPrivateUsage]
    if node is None:
        node = client.get_random_node()
    await client.ready(node)
    return await client.send(node, request)
