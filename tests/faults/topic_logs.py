"""Read topics from their beginning to their end, and what a group ever committed from the broker's own log of it."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.protocol.types import CompactString

from aggregator.sources.kafka.aiokafka_internals import topic_ids
from tests.support.kafka_client import connected_admin

COMMITS = "__consumer_offsets"
_POLL_MS = 500
_COMMIT_KEY_VERSIONS = (0, 1)
_COMMIT_VALUE_VERSION = 4


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit as the coordinator wrote it down, at its own time."""

    topic: str
    partition: int
    offset: int
    at_ms: int
    metadata: str = ""


@asynccontextmanager
async def _reader(bootstrap: str, topics: Sequence[str]) -> AsyncGenerator[tuple[Any, Mapping[TopicPartition, int]]]:
    """A consumer at the beginning of topics, and where each of their partitions ends now."""
    async with connected_admin(bootstrap) as admin:
        described = await admin.describe_topics(list(topics))
    partitions = [TopicPartition(each["topic"], part["partition"]) for each in described for part in each["partitions"]]
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        check_crcs=False,  # a row may have spoilt a batch, and what was in it counts all the same
        enable_auto_commit=False,
        fetch_max_bytes=64 * 1024 * 1024,
        max_partition_fetch_bytes=16 * 1024 * 1024,
    )
    try:
        await consumer.start()
        consumer.assign(partitions)
        yield consumer, await consumer.end_offsets(partitions)
    finally:
        await consumer.stop()


async def ids_of(bootstrap: str, *topics: str) -> dict[str, str]:
    """The broker's id of each topic, in hexadecimal digits."""
    async with connected_admin(bootstrap) as admin:
        return await topic_ids(admin, topics)


async def read_topics(bootstrap: str, *topics: str) -> AsyncIterator[Any]:
    """Every record of topics that are there, in the order of each partition, up to where it ends now."""
    async with _reader(bootstrap, topics) as (consumer, ends):
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=_POLL_MS)).values():
                for record in records:
                    yield record


async def end_offsets(bootstrap: str, *topics: str) -> dict[tuple[str, int], int]:
    """Where each partition ends now."""
    async with _reader(bootstrap, topics) as (_, ends):
        return {(tp.topic, tp.partition): end for tp, end in ends.items()}


async def commits(bootstrap: str, group: str) -> list[Commit]:
    """All that a group ever committed, in the order in which the coordinator took it."""
    found: list[Commit] = []
    async for record in read_topics(bootstrap, COMMITS):
        commit = _commit(record.key, record.value, group)
        if commit is not None:
            found.append(commit)
    return found


def _commit(key: bytes, value: bytes | None, group: str) -> Commit | None:
    """The layout is Kafka's own: OffsetCommitKey and OffsetCommitValue of its group coordinator."""
    (version,) = struct.unpack_from(">h", key)
    if version not in _COMMIT_KEY_VERSIONS or value is None:
        return None
    name, at = _text(key, 2)
    if name != group:
        return None
    topic, at = _text(key, at)
    (partition,) = struct.unpack_from(">i", key, at)
    version, offset, _ = struct.unpack_from(">hqi", value)
    assert version == _COMMIT_VALUE_VERSION, "A commit of another layout than Kafka 4.3's."
    rest = BytesIO(value[14:])
    metadata: str = CompactString("utf-8").decode(rest)
    (at_ms,) = struct.unpack(">q", rest.read(8))
    return Commit(topic, partition, offset, at_ms, metadata)


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length
