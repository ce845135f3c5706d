"""A member of the consumer group: aiokafka's consumer, and requests for which it has no method.

A commit carries the generation in which its partitions were assigned. The coordinator refuses it in a later one, so an
old position never overwrites that of the new owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.fetch import FetchRequest
from typing_extensions import override

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka import aiokafka_internals as internals
from aggregator.sources.kafka.connection import client_options
from aggregator.sources.kafka.consumer.corrupt import AbortedTransaction
from aggregator.sources.kafka.consumer.offsets import committed_offsets, offsets_request, topic_note
from aggregator.sources.kafka.consumer.topic_ids import NO_ID, FetchesById, TopicIdRequest, topic_id
from aggregator.sources.kafka.records import Record

_LOG = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0
_REJOIN_MARGIN_S = 10.0
_NEVER_MS = 2**31 - 1
_FETCH_WAIT_S = 0.1
_FETCH_BYTES = 16 * 1024 * 1024
_PARTITION_FETCH_BYTES = 1024 * 1024

_ISOLATION = "read_committed"
_READ_COMMITTED = 1
_FETCH_NAMES_REPLICA = 11
"""From this version on, a fetch response has a field between the aborted transactions and the records."""

OnRevoked = Callable[[], Awaitable[None]]
OnAssigned = Callable[[int, str, Iterable[TopicPartition]], None]


class GroupMember(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """A consumer in the group. `on_revoked` is awaited before any partition is given back."""

    def __init__(self, settings: KafkaSettings, on_revoked: OnRevoked, on_assigned: OnAssigned) -> None:
        rebalance_timeout_s = settings.client.drain_timeout_s + _REJOIN_MARGIN_S
        self._settings = settings
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._heartbeat_s = -inf
        self._consumer: Any = AIOKafkaConsumer(
            **client_options(settings),
            group_id=settings.group_id,
            enable_auto_commit=False,
            auto_offset_reset="none",  # start and out-of-range positions are decided here, and counted
            isolation_level=_ISOLATION,
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
            session_timeout_ms=int(settings.client.session_timeout_s * 1000),
            heartbeat_interval_ms=int(min(_HEARTBEAT_S, settings.client.session_timeout_s / 3) * 1000),
            rebalance_timeout_ms=int(rebalance_timeout_s * 1000),
            request_timeout_ms=int((rebalance_timeout_s + _REJOIN_MARGIN_S) * 1000),
            max_poll_interval_ms=_NEVER_MS,  # back-pressure may stop fetching for as long as it takes
            max_poll_records=settings.client.max_poll_records,
            fetch_max_wait_ms=int(_FETCH_WAIT_S * 1000),
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            metadata_max_age_ms=30_000,  # new partitions are found this soon
        )

    @property
    def in_group(self) -> bool:
        """Whether the coordinator accepted a heartbeat of this member within the session time-out.

        Other threads may ask.
        """
        if not internals.knows_coordinator(self._consumer) or self.failure is not None:
            return False
        return self.generation >= 0 and time.monotonic() - self._heartbeat_s <= self._settings.client.session_timeout_s

    @property
    def generation(self) -> int:
        """The generation that this member last joined; -1 once the group has removed it."""
        return internals.generation_of(self._consumer)[0]

    @property
    def failure(self) -> Exception | None:
        """An error that only a new membership cures."""
        return internals.consumer_failure(self._consumer)

    async def start(self) -> None:
        """Connect, and join in the background. Raises KafkaError when no broker answers."""
        await self._consumer.start()
        internals.on_heartbeat(self._consumer, self._heartbeat_answered)
        self._fetches = FetchesById(internals.client_of(self._consumer))
        self._consumer.subscribe([topic.name for topic in self._settings.topics], listener=self)

    async def stop(self, timeout_s: float) -> None:
        """Leave the group and disconnect; after the time-out, only disconnect."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._consumer.stop()
        except Exception as error:  # noqa: BLE001 - what ended one of its tasks is raised again
            _LOG.warning("could not leave the consumer group in time", extra={"error": repr(error)})
            await internals.abandon_consumer(self._consumer)

    async def poll(
        self, tps: Iterable[TopicPartition], max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """The next records of these partitions; none after the time-out. Waits while the group rebalances.

        Raises whatever aiokafka raises; records of other partitions may be lost with it, so seek them all back.
        """
        found: Mapping[TopicPartition, Sequence[Record]] = await self._consumer.getmany(
            *tps, timeout_ms=int(timeout_s * 1000), max_records=max_records
        )
        return found

    def read(self, tp: TopicPartition, topic_id: bytes, offset: int) -> None:
        """Start to read a partition of the topic with this id at `offset`."""
        self._fetches.use(tp, topic_id)
        self.seek(tp, offset)

    def lost_topic(self, tp: TopicPartition) -> bool:
        """Whether its leader knows no topic with that id."""
        return self._fetches.is_unknown(tp)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read from `offset` next; nothing happens if the partition is no longer assigned."""
        with contextlib.suppress(kafka_errors.IllegalStateError):
            self._consumer.seek(tp, offset)

    async def position(self, tp: TopicPartition) -> int | None:
        """The next offset that `poll` will return or pass over; None: the partition is no longer assigned."""
        try:
            position: int = await self._consumer.position(tp)
        except kafka_errors.IllegalStateError:
            return None
        return position

    def highwater(self, tp: TopicPartition) -> int:
        """The end of the log as of the last fetch, 0 before the first."""
        return (self._consumer.highwater(tp) or 0) if tp in self._consumer.assignment() else 0

    def since_fetch_s(self, tp: TopicPartition) -> float:
        """Seconds since the last fetch reported the end of the log; `inf` before the first."""
        fetched_ms: int | None = None
        if tp in self._consumer.assignment():
            fetched_ms = self._consumer.last_poll_timestamp(tp)
        return inf if fetched_ms is None else max(0.0, time.time() - fetched_ms / 1000)  # a clock that may step

    async def topic_id(self, topic: str) -> bytes:
        """The topic's id: it differs from that of an earlier or later topic of the same name. Raises KafkaError."""
        client = internals.client_of(self._consumer)
        response = await client.send(client.get_random_node(), TopicIdRequest(topic))
        return topic_id(response)

    async def committed(self, tps: Sequence[TopicPartition], topic_id: bytes = NO_ID) -> Mapping[TopicPartition, int]:
        """The group's committed offsets of these partitions of one topic; those without one are left out.

        Offsets that were committed for a topic with another id do not count. Raises KafkaError.
        """
        request = offsets_request(self._settings.group_id, tps)
        response = await internals.ask_coordinator(self._consumer, request)
        try:
            return committed_offsets(response, tps, topic_id)
        except kafka_errors.NotCoordinatorForGroupError:
            internals.look_for_coordinator(self._consumer)
            raise

    async def log_starts(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The earliest offset of each. Raises KafkaError."""
        starts: Mapping[TopicPartition, int] = await self._consumer.beginning_offsets(tps)
        return starts

    async def log_ends(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The offset after the last record of each. Raises KafkaError."""
        ends: Mapping[TopicPartition, int] = await self._consumer.end_offsets(tps)
        return ends

    async def commit(
        self, generation: int, member_id: str, offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, type[Exception] | None]:
        """Send one commit, for one generation; returns each partition's error, or None. Raises KafkaError."""
        by_topic: dict[str, list[tuple[int, int, str]]] = {}
        for tp, offset in offsets.items():
            note = topic_note(self._fetches.id_of(tp))
            by_topic.setdefault(tp.topic, []).append((tp.partition, offset, note))
        request = OffsetCommitRequest(self._settings.group_id, generation, member_id, -1, list(by_topic.items()))
        response = await internals.ask_coordinator(self._consumer, request)
        errors: dict[TopicPartition, type[Exception] | None] = {}
        for topic, partitions in response.topics:
            for partition, code in partitions:
                errors[TopicPartition(topic, partition)] = kafka_errors.for_code(code) if code else None
        if kafka_errors.NotCoordinatorForGroupError in errors.values():
            internals.look_for_coordinator(self._consumer)
        return errors

    async def raw_batches(self, tp: TopicPartition, offset: int) -> tuple[bytes, Sequence[AbortedTransaction]]:
        """The bytes of the record batches from the one with `offset` on, and the aborted transactions among them.

        Raises KafkaError.
        """
        client = internals.client_of(self._consumer)
        part = [(tp.topic, [(tp.partition, offset, _PARTITION_FETCH_BYTES)])]
        request = FetchRequest(int(_FETCH_WAIT_S * 1000), 1, _FETCH_BYTES, _READ_COMMITTED, part)
        response = await client.send(client.cluster.leader_for_partition(tp), request)
        for _, partitions in response.topics:
            for _, code, *found in partitions:
                if code:
                    raise kafka_errors.for_code(code)(tp)
                aborted = found[-3 if response.API_VERSION >= _FETCH_NAMES_REPLICA else -2]
                return bytes(found[-1] or b""), aborted or ()
        return b"", ()

    @override
    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - may be one
        """Called before the member joins again, which waits for it."""
        await self._on_revoked()
        self._fetches.clear()

    @override
    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - may be one
        """The group has a new generation."""
        self._heartbeat_answered()
        self._on_assigned(*internals.generation_of(self._consumer), assigned)

    def _heartbeat_answered(self) -> None:
        self._heartbeat_s = time.monotonic()
