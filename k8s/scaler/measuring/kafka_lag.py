"""Ask Kafka how far its topics reach, and how far the group has come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import client_options
from aggregator.sources.kafka.consumer.offsets import committed_offsets, offsets_request

_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_MS = 5_000

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Every partition of the query topics: where its log begins and ends, and what the group has committed."""

    starts: Mapping[Place, int]
    ends: Mapping[Place, int]
    committed: Mapping[Place, int]
    measured_s: float

    def unread(self, positions: Mapping[Place, int], topic: str) -> int:
        """Records that nobody took yet: from the owner's position, else the commit, else the beginning of the log."""
        return sum(
            max(0, end - max(positions.get(place, self.committed.get(place, 0)), self.starts.get(place, 0)))
            for place, end in self.ends.items()
            if place[0] == topic
        )

    def records(self, topic: str) -> int:
        """Sum of the log ends: its growth is the rate of arrival."""
        return sum(end for place, end in self.ends.items() if place[0] == topic)


class KafkaLag:
    """A client that reads no records."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._admin: Any = None

    async def read(self, measured_s: float) -> LogEnds:
        """How things stand. Raises KafkaError or TimeoutError; connects anew the next time."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._read(measured_s)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Hang up."""
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
        return LogEnds(
            starts={(each.topic, each.partition): offset for each, offset in starts.items()},
            ends={(each.topic, each.partition): offset for each, offset in ends.items()},
            committed=committed,
            measured_s=measured_s,
        )

    async def _partitions(self) -> list[TopicPartition]:
        """Those of every query topic. Raises KafkaError for a topic that is not there: no zero for want of one."""
        described = await self._admin.describe_topics([topic.name for topic in self._settings.topics])
        found: list[TopicPartition] = []
        for topic in described:
            if topic["error_code"]:
                raise for_code(topic["error_code"])(topic["topic"])
            found += [TopicPartition(topic["topic"], each["partition"]) for each in topic["partitions"]]
            await self._consumer._client.add_topic(topic["topic"])  # noqa: SLF001 - else it knows no leader of it
        return found

    async def _committed(self, partitions: Sequence[TopicPartition]) -> dict[Place, int]:
        """What the group has committed, where it has. Raises KafkaError."""
        group = self._settings.group_id
        coordinator = await self._admin.find_coordinator(group)
        request = offsets_request(group, partitions)
        answer = await self._admin._send_request(request, coordinator)  # noqa: SLF001 - there is no other way
        return {(tp.topic, tp.partition): offset for tp, offset in committed_offsets(answer, partitions).items()}

    async def _connect(self) -> None:
        if self._consumer is not None:
            return
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
