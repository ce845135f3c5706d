"""One membership of the consumer group: partitions are assigned, placed, committed, drained and revoked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.consumer.group import GroupMember, OnAssigned, OnRevoked
from aggregator.sources.kafka.consumer.partitions import Assignment, Partition
from aggregator.sources.kafka.consumer.reader import IntakeObserver, OnFenced, Reader

_LOG = logging.getLogger(__name__)

_DRAIN_POLL_S = 0.01
_RETRY_S = 0.5
_COMMIT_TIMEOUT_S = 5.0
_LOG_ENDS_INTERVAL_S = 5.0

_STALE = (kafka_errors.IllegalGenerationError, kafka_errors.UnknownMemberIdError)

T = TypeVar("T")
MemberFactory = Callable[[KafkaSettings, OnRevoked, OnAssigned], GroupMember]


class Membership:
    """A member of the group and its current assignment; `on_change` is told when there may be more to read."""

    def __init__(
        self,
        settings: KafkaSettings,
        observer: IntakeObserver,
        on_fenced: OnFenced,
        on_change: Callable[[], None],
        member: MemberFactory = GroupMember,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._on_fenced = on_fenced
        self._on_change = on_change
        self._member = member(settings, self._on_revoked, self._on_assigned)
        self._reader = Reader(self._member, settings, observer, on_fenced)
        self._committing = asyncio.Lock()
        self._commits_fail = False
        self._tasks: asyncio.TaskGroup | None = None
        self._ending = False
        self._joined = False
        self.assignment = Assignment(-1, "", ())

    @property
    def healthy(self) -> bool:
        """Whether the group assigned partitions, or none, to this member, and still counts it as one."""
        return self._joined and not self.assignment.stale and self._member.in_group

    async def take_part(self, tasks: asyncio.TaskGroup) -> None:
        """Join, stay and commit, until cancelled.

        Raises KafkaError when no broker answers, or when something ended that only a new membership mends.
        """
        self._tasks = tasks
        await self._member.start()
        tasks.create_task(self._watch_log_ends(), name="watch log ends")
        while True:
            await asyncio.sleep(self._settings.client.commit_interval_s)
            await self._commit(self.assignment)
            failure = self._member.failure
            if failure is not None:
                raise failure

    async def read(self, paused_topics: frozenset[str], timeout_s: float) -> bool:
        """Fetch the next records of the partitions that may be read; False when there is no such partition now."""
        assignment = self.assignment
        readable = assignment.readable(
            paused_topics, self._settings.client.max_commit_span, asyncio.get_running_loop().time()
        )
        if not readable:
            return False
        await self._reader.read(assignment, readable, timeout_s)
        if assignment.over:  # what came may be of the next assignment, which would miss it: go back
            for partition in self.assignment.partitions.values():
                self._member.seek(partition.tp, partition.read_to)
        return True

    async def commit_last(self, timeout_s: float) -> None:
        """Stop reading, commit what is completed, fence the rest."""
        self._ending = True
        assignment = self.assignment
        assignment.over = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not await self._commit(assignment):  # noqa: ASYNC110 - tries
                    await asyncio.sleep(_RETRY_S)
        self._fence(assignment)

    async def leave(self, timeout_s: float) -> None:
        """Leave the group and disconnect, in any state."""
        self._ending = True
        self._fence(self.assignment)
        await self._member.stop(timeout_s)

    def lag_records(self, partition: Partition) -> int:
        """Log end minus what was handed out."""
        return max(0, max(self._member.highwater(partition.tp), partition.log_end) - partition.delivered_to)

    async def _watch_log_ends(self) -> None:
        """Ask for log ends: a fetch reports them only for partitions that are being read."""
        while True:
            await asyncio.sleep(_LOG_ENDS_INTERVAL_S)
            partitions = list(self.assignment.partitions.values())
            with contextlib.suppress(kafka_errors.KafkaError):
                ends = await self._member.log_ends([partition.tp for partition in partitions])
                for partition in partitions:
                    partition.log_end = ends[partition.tp]

    def _on_assigned(self, generation: int, member_id: str, tps: Iterable[TopicPartition]) -> None:
        self.assignment = assignment = Assignment(generation, member_id, tps)
        self._joined = True
        _LOG.info("joined the consumer group", extra={"partitions": len(assignment.tps)})
        if self._tasks is None or self._ending:
            return
        placing = self._place(assignment)
        try:
            self._tasks.create_task(placing, name="place partitions")
        except RuntimeError:  # something else has just ended this membership
            placing.close()

    async def _place(self, assignment: Assignment) -> None:
        """Start each partition at the committed offset; without one, at the log's start, which is committed at once."""
        topics: dict[str, list[TopicPartition]] = {}
        for tp in assignment.tps:
            topics.setdefault(tp.topic, []).append(tp)
        await asyncio.gather(*(self._place_topic(assignment, topic, tps) for topic, tps in topics.items()))

    async def _place_topic(self, assignment: Assignment, topic: str, tps: Sequence[TopicPartition]) -> None:
        """Ask for the id first: if the topic is created again after that, its leader refuses fetches with this id."""
        member = self._member
        topic_id = await self._insist(assignment, partial(member.topic_id, topic))
        if topic_id is None:
            return
        committed = await self._insist(assignment, partial(member.committed, tps, topic_id))
        if committed is None:
            return
        for tp in tps:
            if tp in committed:
                self._start(assignment, tp, topic_id, committed[tp], committed[tp])
        self._on_change()
        await asyncio.gather(*(self._place_at_start(assignment, tp, topic_id) for tp in tps if tp not in committed))

    async def _place_at_start(self, assignment: Assignment, tp: TopicPartition, topic_id: bytes) -> None:
        starts = await self._insist(assignment, partial(self._member.log_starts, [tp]))
        if starts is not None:
            self._start(assignment, tp, topic_id, starts[tp], None)
            _LOG.info("started a partition", extra={"topic": tp.topic, "partition": tp.partition, "offset": starts[tp]})
            self._on_change()
            await self._commit(assignment)

    def _start(
        self, assignment: Assignment, tp: TopicPartition, topic_id: bytes, offset: int, committed: int | None
    ) -> None:
        assignment.place(tp, offset, committed, topic_id)
        self._member.read(tp, topic_id, offset)

    async def _insist(self, assignment: Assignment, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask until there is an answer; None if the partitions were revoked meanwhile."""
        answer: T | None = None
        while answer is None and not assignment.over:
            try:
                answer = await ask()
            except kafka_errors.KafkaError as error:
                _LOG.warning("could not look up start offsets", extra={"error": repr(error)})
                await asyncio.sleep(_RETRY_S)
        return None if assignment.over else answer

    async def _commit(self, assignment: Assignment) -> bool:
        """Commit every position that moved; True if the group has them all, or takes no more of this generation.

        One request at a time, so that positions never overtake each other. A failure is counted and never fatal. The
        coordinator refuses commits of a former generation; the new owner processes those records again.
        """
        async with self._committing:
            offsets = assignment.moved()
            if not offsets or assignment.stale or assignment.fenced:
                return True
            sent = {tp: assignment.partitions[tp] for tp in offsets}
            try:
                async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                    errors = await self._member.commit(assignment.generation, assignment.member_id, offsets)
            except (kafka_errors.KafkaError, TimeoutError) as error:
                self._commit_failed({type(error)}, len(offsets))
                return False
            failed = {tp: errors.get(tp, kafka_errors.UnknownError) for tp in offsets}
            failed = {tp: error for tp, error in failed.items() if error is not None}
            for tp in offsets.keys() - failed.keys():
                sent[tp].committed = offsets[tp]
            if failed:
                self._commit_failed(set(failed.values()), len(failed))
            elif self._commits_fail:
                self._commits_fail = False
                _LOG.info("commits succeed again")
            assignment.stale = any(error in _STALE for error in failed.values())
            return not failed or assignment.stale

    def _commit_failed(self, errors: Collection[type[Exception]], partitions: int) -> None:
        self._observer.commit_failed(len(errors))
        if not self._commits_fail:
            self._commits_fail = True
            names = ", ".join(sorted(error.__name__ for error in errors))
            _LOG.warning("could not commit", extra={"error": names, "partitions": partitions})

    async def _on_revoked(self) -> None:
        """Wait for in-flight records, commit them, and only then let the partitions go."""
        assignment = self.assignment
        assignment.over = True
        if not assignment.tps:
            return
        self._observer.rebalanced()
        try:
            await self._drain(assignment)
            await self._commit(assignment)
        finally:
            self._fence(assignment)

    async def _drain(self, assignment: Assignment) -> None:
        """Wait for in-flight records; not once the group has removed this member, as it can commit nothing then."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.client.drain_timeout_s
        while assignment.unfinished and not self._ending and loop.time() < until_s:
            if self._member.generation != assignment.generation:
                return
            await asyncio.sleep(_DRAIN_POLL_S)  # a committed offset calls nobody

    def _fence(self, assignment: Assignment) -> None:
        unfinished = assignment.fence()
        if unfinished:
            _LOG.warning("partitions were revoked with records in flight", extra={"records": len(unfinished)})
            self._on_fenced(unfinished)
        if self.assignment is assignment:
            self.assignment = Assignment(-1, "", ())
