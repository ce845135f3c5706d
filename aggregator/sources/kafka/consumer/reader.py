"""Read records of the assigned partitions, and handle faults: lost, corrupt and forbidden records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.consumer.committed_offset import InFlightRecord
from aggregator.sources.kafka.consumer.corrupt import offset_after_batch, rescue_records
from aggregator.sources.kafka.consumer.group import GroupMember
from aggregator.sources.kafka.consumer.partitions import Assignment, Partition
from aggregator.sources.kafka.records import Record

_LOG = logging.getLogger(__name__)

_SINGLE_WAIT_S = 0.5
_FAULT_PAUSE_S = 1.0
_BLOCKED_S = 10.0

OnFenced = Callable[[Sequence[InFlightRecord]], None]
"""Is told of the records that were not complete when their partition was revoked: the new owner processes them."""


class IntakeObserver(Protocol):
    """Is told of events of the consumer; `Metrics` is one."""

    def rebalanced(self) -> None:
        """The group revoked this member's partitions, to assign them again."""
        ...

    def commit_failed(self, count: int = 1) -> None:
        """This number of commits failed; they are retried."""
        ...

    def records_lost(self, topic: str, count: int) -> None:
        """This number of records will never be read: they were deleted, or skipped because they are corrupt."""
        ...

    def found_corrupt(self, topic: str) -> None:
        """A record batch cannot be read."""
        ...


class Reader:
    """Reads for one member of the group. Calls do not overlap."""

    def __init__(
        self, member: GroupMember, settings: KafkaSettings, observer: IntakeObserver, on_fenced: OnFenced
    ) -> None:
        self._member = member
        self._settings = settings
        self._observer = observer
        self._on_fenced = on_fenced

    async def read(self, assignment: Assignment, readable: Sequence[Partition], timeout_s: float) -> None:
        """Fetch the next records of these partitions, if any come within the time-out; or handle a fault.

        Waits while the group rebalances; records of the next assignment are left to it.
        """
        suspects = [partition for partition in readable if partition.suspect]
        if suspects:
            await self._read_singly(assignment, suspects[0])
            return
        tps = [partition.tp for partition in readable]
        try:
            found = await self._member.poll(tps, self._settings.client.max_poll_records, timeout_s)
        except Exception as error:  # noqa: BLE001 - a record that cannot be parsed raises anything
            await self._deal_with(error, assignment, readable)
            return
        for partition in readable:
            position = None if assignment.over else await self._member.position(partition.tp)
            if position is None:
                continue
            records = found.get(partition.tp)
            if records:
                partition.fetched, partition.read_to = records, max(records[-1].offset + 1, position)
            else:
                partition.skip_to(position)  # past transaction markers, or offsets that compaction emptied
            if position == self._member.highwater(partition.tp):  # what comes next was written after that fetch
                ended_s = asyncio.get_running_loop().time() - self._member.since_fetch_s(partition.tp)
                partition.committed_offset.saw_log_end(position, ended_s)

    async def _read_singly(self, assignment: Assignment, partition: Partition) -> None:
        """Read one record at a time up to the one that cannot be read: it would make a larger fetch fail."""
        records: list[Record] = []
        try:
            while len(records) < self._settings.client.max_poll_records:
                found = await self._member.poll((partition.tp,), 1, 0.0 if records else _SINGLE_WAIT_S)
                if not found:
                    partition.suspect = False
                    break
                records.extend(found[partition.tp])
        except Exception as error:  # noqa: BLE001 - as above
            if not records and not (
                isinstance(error, UnicodeDecodeError) and await self._rescue(assignment, partition)
            ):
                await self._deal_with(error, assignment, (partition,))
        if records and not assignment.over:
            partition.fetched, partition.read_to = records, records[-1].offset + 1

    async def _deal_with(self, error: Exception, assignment: Assignment, partitions: Sequence[Partition]) -> None:
        """Seek back to what was read last, as aiokafka may have dropped good records with the error; then handle it."""
        if assignment.over:
            return
        for partition in partitions:
            self._member.seek(partition.tp, partition.read_to)
        if isinstance(error, kafka_errors.OffsetOutOfRangeError):
            for partition in [each for each in partitions if each.tp in error.args[0]]:
                lost_topic = self._member.lost_topic(partition.tp)
                await (self._return_to_topic if lost_topic else self._return_to_log)(assignment, partition)
        elif isinstance(error, kafka_errors.TopicAuthorizationFailedError):
            _LOG.error("not authorised to read a topic; its partitions wait", extra={"topics": error.args})
            for partition in partitions:
                if partition.tp.topic in error.args:
                    partition.blocked_until_s = asyncio.get_running_loop().time() + _BLOCKED_S
        elif isinstance(error, kafka_errors.CorruptRecordException) or not isinstance(error, kafka_errors.KafkaError):
            await self._suspect(assignment, partitions, error)
        else:
            _LOG.warning("could not fetch", extra={"error": repr(error)})
            await asyncio.sleep(_FAULT_PAUSE_S)

    async def _suspect(self, assignment: Assignment, partitions: Sequence[Partition], error: Exception) -> None:
        """Find the partition with the corrupt batch: read the named or all partitions one record at a time."""
        if len(partitions) == 1 and partitions[0].suspect:
            await self._stand_before_corrupt(assignment, partitions[0], error)
            return
        for partition in [each for each in partitions if str(each.tp) in str(error)] or partitions:
            partition.suspect = True

    async def _return_to_log(self, assignment: Assignment, partition: Partition) -> None:
        """Continue at the log's start: retention deleted records that were not read, or the log was truncated."""
        tp, position = partition.tp, partition.read_to
        try:
            start = (await self._member.log_starts((tp,)))[tp]
        except kafka_errors.KafkaError as error:
            _LOG.warning("could not read the start offset of a log", extra={"error": repr(error)})
            return
        if assignment.over:
            return
        details = {"topic": tp.topic, "partition": tp.partition, "position": position, "log_start": start}
        if start > position:
            self._observer.records_lost(tp.topic, start - position)
            _LOG.error("lost records to retention", extra={**details, "records": start - position})
            partition.skip_to(start)
        else:
            _LOG.error("log was truncated before the position; reading it from its start", extra=details)
            self._on_fenced(partition.committed_offset.fence())
            assignment.place(tp, start, None, partition.topic_id)
        self._member.seek(tp, start)

    async def _return_to_topic(self, assignment: Assignment, partition: Partition) -> None:
        """Read a topic that was deleted and created again from its start; wait while there is none.

        In-flight records of the old topic are answered; its records that were not read, as far as known, are lost.
        """
        tp, position, known_id = partition.tp, partition.read_to, partition.topic_id
        partition.blocked_until_s = asyncio.get_running_loop().time() + _FAULT_PAUSE_S
        try:
            topic_id = await self._member.topic_id(tp.topic)
            if topic_id == known_id:
                return
            start = (await self._member.log_starts((tp,)))[tp]
        except kafka_errors.KafkaError as error:
            _LOG.warning("could not look up a deleted topic", extra={"topic": tp.topic, "error": repr(error)})
            return
        if assignment.over:
            return
        lost = max(0, self._member.highwater(tp) - position)
        if lost:
            self._observer.records_lost(tp.topic, lost)
        details = {"topic": tp.topic, "partition": tp.partition, "position": position, "records": lost}
        _LOG.error("topic was deleted and created again; reading it from its start", extra=details)
        assignment.place(tp, start, None, topic_id)
        self._member.read(tp, topic_id, start)

    async def _stand_before_corrupt(self, assignment: Assignment, partition: Partition, error: Exception) -> None:
        """Report a batch that cannot be read; skip it if the settings allow that, else try again later."""
        tp, offset = partition.tp, partition.read_to
        if partition.corrupt_at != offset:
            partition.corrupt_at = offset
            self._observer.found_corrupt(tp.topic)
        details = {"topic": tp.topic, "partition": tp.partition, "offset": offset, "error": repr(error)}
        after = await self._offset_after(partition) if self._settings.skip_corrupt_batches else None
        if assignment.over:
            return
        if after is None:
            partition.blocked_until_s = asyncio.get_running_loop().time() + _BLOCKED_S
            _LOG.error("cannot read a record batch; its partition waits", extra=details)
            return
        self._observer.records_lost(tp.topic, after - offset)
        _LOG.error("skipped a record batch that cannot be read", extra={**details, "records": after - offset})
        partition.suspect = False
        partition.skip_to(after)
        self._member.seek(tp, after)

    async def _rescue(self, assignment: Assignment, partition: Partition) -> bool:
        """Parse a batch here that aiokafka cannot, as a header name is not UTF-8; False if that fails, too."""
        tp, offset = partition.tp, partition.read_to
        try:
            data, aborted = await self._member.raw_batches(tp, offset)
            records, after = rescue_records(data, tp.topic, tp.partition, offset, aborted)
        except (kafka_errors.KafkaError, ValueError):
            return False
        if assignment.over:
            return False
        self._member.seek(tp, after)
        if records:
            partition.fetched, partition.read_to = records, after
        else:
            partition.skip_to(after)
        return True

    async def _offset_after(self, partition: Partition) -> int | None:
        try:
            data, _ = await self._member.raw_batches(partition.tp, partition.read_to)
        except kafka_errors.KafkaError:
            return None
        return offset_after_batch(data, partition.read_to, self._member.highwater(partition.tp))
