"""One membership of the consumer group: aiokafka's consumer, and the few things that it keeps to itself.

Commits are sent here rather than by aiokafka, which retries them across rebalances under whatever generation it
then has: an old position could overwrite the new owner's. Here a commit carries the generation that its partitions
were assigned in, so the coordinator refuses it later. Checked against aiokafka 0.14.
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
from aggregator.sources.kafka.connection import client_options, close_client
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
_STOP_S = 1.0

_ISOLATION = "read_committed"
_READ_COMMITTED = 1
_FETCH_NAMES_REPLICA = 11
"""From this version of a fetch's answer on there is a field between the aborted transactions and the records."""

OnRevoked = Callable[[], Awaitable[None]]
OnAssigned = Callable[[int, str, Iterable[TopicPartition]], None]


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, on_revoked: OnRevoked, on_assigned: Callable[[Iterable[TopicPartition]], None]) -> None:
        self._on_revoked = on_revoked
        self._on_assigned = on_assigned

    @override
    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - may be one
        await self._on_revoked()

    @override
    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - may be one
        self._on_assigned(assigned)


class GroupMember:
    """A consumer in the group. `on_revoked` is awaited before the group may go on; `on_assigned` hears of the rest."""

    def __init__(self, settings: KafkaSettings, on_revoked: OnRevoked, on_assigned: OnAssigned) -> None:
        rebalance_timeout_s = settings.client.drain_timeout_s + _REJOIN_MARGIN_S
        self._settings = settings
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._heard_s = -inf
        self._listener = _Listener(self._revoked, self._assigned)
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
    def _coordinator(self) -> Any:
        return self._consumer._coordinator  # noqa: SLF001 - see the top of this file

    @property
    def in_group(self) -> bool:
        """Whether the group's coordinator counts this member in: it said so within the session time-out.

        Other threads may ask.
        """
        coordinator = self._coordinator
        if coordinator is None or coordinator.coordinator_id is None or self.failure is not None:
            return False
        return self.generation >= 0 and time.monotonic() - self._heard_s <= self._settings.client.session_timeout_s

    @property
    def generation(self) -> int:
        """The group's generation that this member last joined; -1 when the group has put it out."""
        return int(self._coordinator.generation)

    @property
    def failure(self) -> Exception | None:
        """What only a new membership mends: the group refuses this member, or a task of aiokafka has ended.

        aiokafka starts none of them anew. Heartbeats and the asking for offsets end with each assignment, and then
        without an error.
        """
        coordinator, consumer = self._coordinator, self._consumer
        lasting = (coordinator._coordination_task, consumer._fetcher._fetch_task, consumer._client._sync_task)  # noqa: SLF001
        passing = (coordinator._heartbeat_task, coordinator._commit_refresh_task)  # noqa: SLF001
        for task in passing:
            if task is not None and task.done() and (task.cancelled() or task.exception() is not None):
                return _end_of(task)
        for task in lasting:
            if task is not None and task.done():
                return _end_of(task)
        refusal: Exception | None = coordinator._pending_exception  # noqa: SLF001
        return refusal

    async def start(self) -> None:
        """Connect, and join in the background. Raises KafkaError when no broker answers."""
        await self._consumer.start()
        self._note_heartbeats()
        self._fetches = FetchesById(self._consumer._client)  # noqa: SLF001 - see the top of this file
        self._consumer.subscribe([topic.name for topic in self._settings.topics], listener=self._listener)

    async def stop(self, timeout_s: float) -> None:
        """Leave the group and disconnect; by force when that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._consumer.stop()
        except Exception as error:  # noqa: BLE001 - what ended one of its tasks is raised again
            _LOG.warning("could not leave the consumer group in time", extra={"error": repr(error)})
            await self._abandon()

    async def poll(
        self, tps: Iterable[TopicPartition], max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """The next records of these partitions; nothing after the time-out. Waits out a rebalance.

        Raises whatever aiokafka raises; records of other partitions may be lost with it, so seek them all back.
        """
        found: Mapping[TopicPartition, Sequence[Record]] = await self._consumer.getmany(
            *tps, timeout_ms=int(timeout_s * 1000), max_records=max_records
        )
        return found

    def read(self, tp: TopicPartition, topic_id: bytes, offset: int) -> None:
        """Begin to read a partition of the topic with this id at `offset`."""
        self._fetches.tell(tp, topic_id)
        self.seek(tp, offset)

    def lost_topic(self, tp: TopicPartition) -> bool:
        """Whether its leader says that it has no topic with that id."""
        return self._fetches.refused(tp)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read from `offset` next; nothing happens if the partition is no longer assigned."""
        with contextlib.suppress(kafka_errors.IllegalStateError):
            self._consumer.seek(tp, offset)

    def position(self, tp: TopicPartition) -> int | None:
        """The next offset that aiokafka will return or pass over, as far as it was returned."""
        state = self._state(tp)
        return state.position if state is not None and state.has_valid_position else None

    def highwater(self, tp: TopicPartition) -> int:
        """The end of the log as of the last fetch, 0 before the first."""
        state = self._state(tp)
        return (state.highwater or 0) if state is not None else 0

    def unheard_s(self, tp: TopicPartition) -> float:
        """How long ago the last fetch told of the end of the log; `inf` before the first."""
        state = self._state(tp)
        if state is None or state.timestamp is None:
            return inf
        told_s: float = state.timestamp / 1000
        return max(0.0, time.time() - told_s)  # theirs is the wall clock's, and may have stepped

    async def topic_id(self, topic: str) -> bytes:
        """What tells a topic from one of the same name before it or after it. Raises KafkaError."""
        client = self._consumer._client  # noqa: SLF001 - there is no public way to ask
        response = await client.send(client.get_random_node(), TopicIdRequest(topic))
        return topic_id(response)

    async def committed(self, tps: Sequence[TopicPartition], topic_id: bytes = NO_ID) -> Mapping[TopicPartition, int]:
        """What the group has committed of these, all of one topic; those that it has nothing of are left out.

        What was committed of a topic with another id is none of this one's. Raises KafkaError.
        """
        request = offsets_request(self._settings.group_id, tps)
        response = await self._coordinator._send_req(request)  # noqa: SLF001 - see the top of this file
        try:
            return committed_offsets(response, tps, topic_id)
        except kafka_errors.NotCoordinatorForGroupError:
            self._coordinator.coordinator_dead()
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
        """Commit once, in the name of one generation; each partition's error, or None. Raises KafkaError."""
        by_topic: dict[str, list[tuple[int, int, str]]] = {}
        for tp, offset in offsets.items():
            note = topic_note(self._fetches.told(tp))
            by_topic.setdefault(tp.topic, []).append((tp.partition, offset, note))
        response = await self._coordinator._send_req(  # noqa: SLF001 - see the top of this file
            OffsetCommitRequest(self._settings.group_id, generation, member_id, -1, list(by_topic.items()))
        )
        words: dict[TopicPartition, type[Exception] | None] = {}
        for topic, partitions in response.topics:
            for partition, code in partitions:
                words[TopicPartition(topic, partition)] = kafka_errors.for_code(code) if code else None
        if kafka_errors.NotCoordinatorForGroupError in words.values():
            self._coordinator.coordinator_dead()
        return words

    async def raw_batches(self, tp: TopicPartition, offset: int) -> tuple[bytes, Sequence[AbortedTransaction]]:
        """The record batches from the one that holds `offset` on, as the broker has them; which of them were aborted.

        Raises KafkaError.
        """
        client = self._consumer._client  # noqa: SLF001 - there is no public way to the bytes
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

    async def _revoked(self) -> None:
        await self._on_revoked()
        self._fetches.forget()

    def _assigned(self, tps: Iterable[TopicPartition]) -> None:
        self._heard_s = time.monotonic()
        self._on_assigned(self._coordinator.generation, self._coordinator.member_id, tps)

    def _note_heartbeats(self) -> None:
        """Keep the time of each that the coordinator answered well, which aiokafka keeps in a local variable."""
        coordinator = self._coordinator
        beat: Callable[[], Awaitable[bool]] = coordinator._do_heartbeat  # noqa: SLF001 - see the top of this file

        async def noted() -> bool:
            counted_in = await beat()
            if counted_in:
                self._heard_s = time.monotonic()
            return counted_in

        coordinator._do_heartbeat = noted  # noqa: SLF001

    def _state(self, tp: TopicPartition) -> Any:
        assignment = self._consumer._subscription.subscription.assignment  # noqa: SLF001 - `position` only as a coroutine
        return assignment.state_value(tp) if assignment is not None else None

    async def _abandon(self) -> None:
        consumer, coordinator = self._consumer, self._coordinator
        consumer._closed = True  # noqa: SLF001 - `stop` did not get this far, or would wait again
        tasks: list[asyncio.Task[None] | None] = []
        if coordinator is not None:
            tasks = [coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task]  # noqa: SLF001
        for task in tasks:
            if task is not None:
                task.cancel()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_STOP_S):
                await close_client(consumer._client)  # noqa: SLF001 - fails every request that waits for an answer
                if consumer._fetcher is not None:  # noqa: SLF001
                    await consumer._fetcher.close()  # noqa: SLF001
                await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)


def _end_of(task: asyncio.Task[None]) -> Exception:
    """Why a task of aiokafka ended."""
    error = None if task.cancelled() else task.exception()
    ended: Exception = kafka_errors.KafkaConnectionError(f"{task.get_coro()} has ended: {error!r}")
    return ended
