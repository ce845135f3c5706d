"""Commit the positions of one member.

A commit is also the sign of life: aiokafka does not report whether heartbeats are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.observability.metrics import Metrics
from aggregator.sources.kafka.partition import Partition

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 5.0


class Commits:
    """Sends one request at a time.

    `removed`: the group went on without this member. `confirmed_s`: when it last counted this member in.
    """

    def __init__(self, client: Any, metrics: Metrics) -> None:
        self.removed = False
        self.confirmed_s = asyncio.get_running_loop().time()
        self._client = client
        self._metrics = metrics
        self._sending = asyncio.Lock()
        self._failing = False

    def joined(self) -> None:
        self.removed = False
        self.confirmed_s = asyncio.get_running_loop().time()

    async def commit(self, partitions: Mapping[TopicPartition, Partition], *, all_positions: bool = False) -> bool:
        """Commit every position that moved, or all; True if the group has them.

        Each topic's offsets go by themselves, so that those of a deleted topic hold no other's.
        """
        async with self._sending:
            if self.removed:
                return False
            sent = {tp: each for tp, each in partitions.items() if all_positions or each.moved}
            topics: dict[str, dict[TopicPartition, int]] = {}
            for tp, partition in sent.items():
                if self._client.partitions_for_topic(tp.topic):  # aiokafka would try those of a missing one without end
                    topics.setdefault(tp.topic, {})[tp] = partition.committed_offset.position
            errors = {error for offsets in topics.values() if (error := await self._send(sent, offsets))}
            if errors:
                self._metrics.commit_failures.add(len(errors))
            if bool(errors) != self._failing and topics:
                self._failing = bool(errors)
                says = "could not commit" if errors else "commits succeed again"
                _LOG.warning(says, extra={"errors": sorted(errors)})
            return not errors

    async def _send(self, sent: Mapping[TopicPartition, Partition], offsets: Mapping[TopicPartition, int]) -> str:
        """Why the group does not have these offsets; empty if it has."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._client.commit(offsets)
        except (kafka_errors.KafkaError, TimeoutError) as error:
            cause = error.__cause__ if isinstance(error, kafka_errors.CommitFailedError) else None
            self.removed |= cause is not None and not isinstance(cause, kafka_errors.RebalanceInProgressError)
            return repr(cause or error)
        for tp, offset in offsets.items():
            sent[tp].committed = offset
        self._confirm()
        return ""

    async def probe(self, partitions: Mapping[TopicPartition, Partition], topic: str) -> None:
        """Commit again the offsets that the group has; without partitions, ask for a committed offset."""
        if partitions:
            await self.commit(partitions, all_positions=True)
            return
        with contextlib.suppress(kafka_errors.KafkaError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await self._client.committed(TopicPartition(topic, 0))
                self._confirm()

    def _confirm(self) -> None:
        self.confirmed_s = max(self.confirmed_s, asyncio.get_running_loop().time())
