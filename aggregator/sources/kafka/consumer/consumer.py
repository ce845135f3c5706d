"""Read the query topics as a member of the consumer group: records in, commits out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

from aiokafka import errors as kafka_errors

from aggregator.errors import is_cancelled
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.consumer.committed_offset import InFlightRecord
from aggregator.sources.kafka.consumer.group import GroupMember
from aggregator.sources.kafka.consumer.membership import MemberFactory, Membership
from aggregator.sources.kafka.consumer.partitions import Assignment
from aggregator.sources.kafka.consumer.reader import IntakeObserver, OnFenced

_LOG = logging.getLogger(__name__)

_POLL_S = 0.05
_RECONNECT_S = 1.0
_FORCED_STOP_S = 1.0
_NOTHING = Assignment(-1, "", ())


class _Closing(Exception):
    """Ends the tasks of one membership."""


class KafkaConsumer:
    """Reads the query topics as a member of the group. `run` does the work; the other methods communicate with it.

    At most one poll of records is kept beyond what `fetch` was asked for. aiokafka keeps one response per partition
    and fetches no more until that is read. Paused partitions are not read, so nothing is fetched twice.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        on_fenced: OnFenced,
        observer: IntakeObserver,
        member: MemberFactory = GroupMember,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._on_fenced = on_fenced
        self._member = member
        self._membership: Membership | None = None
        self._paused: frozenset[str] = frozenset()
        self._fetching = True
        self._wanted = asyncio.Event()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._leave_timeout_s = _FORCED_STOP_S

    async def run(self) -> None:
        """Join the group, fetch, commit, rejoin, until `close` has finished or this is cancelled; survives outages."""
        self._ended.clear()
        try:
            while not self._closing.is_set():
                try:
                    await self._be_member()
                except* _Closing:
                    pass
                except* (kafka_errors.KafkaError, OSError) as errors:
                    _LOG.warning("lost the consumer group", extra={"error": repr(errors.exceptions[0])})
                if is_cancelled():
                    raise asyncio.CancelledError
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RECONNECT_S):
                        await self._closing.wait()
        finally:
            self._ended.set()

    async def fetch(self) -> Sequence[InFlightRecord]:
        """The next records, at least one, of partitions that are not paused; none only once fetching is stopped."""
        while self._fetching:
            in_flight_records = self._assignment.deliver(self._paused)
            if in_flight_records:
                return in_flight_records
            self._wanted.set()
            self._arrived.clear()
            await self._arrived.wait()
        return ()

    def pause(self, topics: frozenset[str]) -> None:
        """Pause exactly these topics' partitions. Those above their commit span are paused besides."""
        self._paused = topics
        self._changed.set()
        self._arrived.set()

    def stop_fetching(self) -> None:
        """Hand out no more records; those in flight go on completing and are committed."""
        self._fetching = False
        self._arrived.set()

    async def close(self, timeout_s: float) -> None:
        """Commit what is completed, fence the rest, leave the group; within the time-out, even without a broker."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        self.stop_fetching()
        if self._membership is not None:
            await self._membership.commit_last(timeout_s / 2)
        self._leave_timeout_s = max(0.0, deadline_s - loop.time() - _FORCED_STOP_S)
        self._closing.set()
        await self._ended.wait()

    @property
    def healthy(self) -> bool:
        """Whether this member has joined and the group's coordinator answers."""
        return self._membership is not None and self._membership.healthy

    def half_span_holders(self) -> Sequence[InFlightRecord]:
        """The records that hold back a committed offset past half of the span's cap: to be promoted in the queue."""
        return self._assignment.half_span_holders(self._settings.client.max_commit_span)

    def lag_records(self) -> Mapping[tuple[str, int], int]:
        """Log end minus what was handed out, of each assigned partition (topic, number)."""
        membership = self._membership
        if membership is None:
            return {}
        return {tp: membership.lag_records(partition) for tp, partition in self._assignment.partitions.items()}

    def positions(self) -> Mapping[tuple[str, int], int]:
        """The offset to be handed out next, of each assigned partition."""
        return {tp: partition.delivered_to for tp, partition in self._assignment.partitions.items()}

    def uncommitted_span(self) -> Mapping[tuple[str, int], int]:
        """Records between the committed offset and the highest completed one, of each assigned partition."""
        return {tp: partition.committed_offset.span for tp, partition in self._assignment.partitions.items()}

    def paused(self) -> frozenset[tuple[str, int]]:
        """The partitions that are paused, with their topic or above their commit span."""
        partitions = self._assignment.partitions.items()
        return frozenset(tp for tp, partition in partitions if partition.over_span or tp.topic in self._paused)

    @property
    def _assignment(self) -> Assignment:
        return _NOTHING if self._membership is None else self._membership.assignment

    async def _be_member(self) -> None:
        """Take part in the group until closing, or until an error that only a new membership cures."""
        membership = Membership(self._settings, self._observer, self._on_fenced, self._changed.set, self._member)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._membership = membership
                tasks.create_task(membership.take_part(tasks), name="take part in the consumer group")
                tasks.create_task(self._read(membership), name="read records")
                await self._closing.wait()
                raise _Closing
        finally:
            self._membership = None
            await membership.leave(self._leave_timeout_s)

    async def _read(self, membership: Membership) -> None:
        while True:
            await self._wanted.wait()
            if not (self._fetching and await membership.read(self._paused, _POLL_S)):
                self._changed.clear()
                with contextlib.suppress(TimeoutError):  # commits free partitions that were over their span cap
                    async with asyncio.timeout(self._settings.client.commit_interval_s):
                        await self._changed.wait()
            elif any(partition.fetched for partition in membership.assignment.partitions.values()):
                self._wanted.clear()
                self._arrived.set()
