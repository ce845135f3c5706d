"""Ask Kafka for the log ends of the topics and the committed offsets of the group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import at_work, client_options, group_offsets

_TIMEOUT_S = 10.0  # an HPA asks every 15 s
_REQUEST_TIMEOUT_MS = 5_000  # another broker can be asked within the time-out

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The start and the end of the log, and the committed offset, of every partition of the request topics."""

    starts: Mapping[Place, int]
    ends: Mapping[Place, int]
    committed: Mapping[Place, int]
    measured_s: float

    def unread(self, positions: Mapping[Place, int], topic: str) -> int:
        """Records not yet fetched: from the owner's position, or the committed offset, or the start of the log."""
        return sum(
            max(0, end - max(positions.get(place, self.committed.get(place, 0)), self.starts.get(place, 0)))
            for place, end in self.ends.items()
            if place[0] == topic
        )

    def records(self, topic: str) -> int:
        """The sum of the log ends; its growth is the number of arrivals."""
        return sum(end for place, end in self.ends.items() if place[0] == topic)


class KafkaLag:
    """A client that asks for offsets and reads no records."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._admin: Any = None
        self._has_read = False

    async def read(self, measured_s: float) -> LogEnds:
        """The offsets now; none without Kafka. Raises KafkaError or TimeoutError; the next call connects again.

        Raises StartError where files of credentials are of no use, and no call has read yet.
        """
        if not self._settings.enabled:
            return LogEnds({}, {}, {}, measured_s)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._read(measured_s)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        consumer, admin = self._consumer, self._admin
        self._consumer = self._admin = None
        for client in (consumer, admin):
            if client is not None:
                await (client.stop() if client is consumer else client.close())

    async def _read(self, measured_s: float) -> LogEnds:
        await self._connect()
        partitions = await self._partitions()
        starts = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        committed = await self._committed(partitions)
        self._has_read = True
        return LogEnds(
            starts={(each.topic, each.partition): offset for each, offset in starts.items()},
            ends={(each.topic, each.partition): offset for each, offset in ends.items()},
            committed=committed,
            measured_s=measured_s,
        )

    async def _partitions(self) -> list[TopicPartition]:
        """The partitions of every request topic. Raises KafkaError if a topic does not exist."""
        described = await self._admin.describe_topics([topic.name for topic in self._settings.topics])
        found: list[TopicPartition] = []
        for topic in described:
            if topic["error_code"]:
                raise for_code(topic["error_code"])(topic["topic"])
            found += [TopicPartition(topic["topic"], each["partition"]) for each in topic["partitions"]]
            await self._consumer._client.add_topic(topic["topic"])  # noqa: SLF001 - otherwise it does not learn the leader
        return found

    async def _committed(self, partitions: Sequence[TopicPartition]) -> dict[Place, int]:
        found = await group_offsets(self._admin, self._settings.group_id, partitions)
        return {(tp.topic, tp.partition): each.offset for tp, each in found.items() if each.offset >= 0}

    async def _connect(self) -> None:
        if self._consumer is not None:
            return
        with at_work(started=self._has_read):
            options = client_options(self._settings)
        consumer = AIOKafkaConsumer(
            **options,
            enable_auto_commit=False,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=30_000,
        )
        admin = AIOKafkaAdminClient(**options, request_timeout_ms=_REQUEST_TIMEOUT_MS)
        self._consumer, self._admin = consumer, admin
        await consumer.start()
        await admin.start()
