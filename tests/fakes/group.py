"""A consumer group in memory, whose answers come when a test says: members put out, commits late or lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.consumer.group import OnAssigned, OnRevoked
from aggregator.sources.kafka.records import Record
from tests.fakes.records import FakeRecord

SESSION_S = 5.0
_HEARTBEAT_S = 0.1

Words = Mapping[TopicPartition, type[Exception] | None]


@dataclass(slots=True)
class Log:
    """One partition; `end` is the next offset."""

    records: list[FakeRecord] = field(default_factory=list[FakeRecord])
    end: int = 0

    def append(self, tp: TopicPartition, value: bytes, headers: Sequence[tuple[str, bytes]], gap: int) -> None:
        """Write one record, after `gap` offsets that hold none; its key tells where it stands."""
        offset = self.end + gap
        key = f"{tp.partition}:{offset}".encode()
        self.records.append(FakeRecord(tp.topic, tp.partition, offset, 0, key, value, headers))
        self.end = offset + 1


@dataclass(slots=True, eq=False)
class Commit:
    """A commit on its way to the coordinator; `words` once it was judged."""

    member: FakeMember
    generation: int
    member_id: str
    offsets: Mapping[TopicPartition, int]
    answer: asyncio.Future[Words]
    words: Words | None = None


class FakeGroup:
    """The coordinator and the logs. While `held`, commits wait until the test lets them arrive and be answered.

    `accepted` is every commit that the group took, in order.
    """

    def __init__(self, logs: Mapping[TopicPartition, Log]) -> None:
        self.logs = logs
        self.generation = 0
        self.members: dict[str, FakeMember] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.accepted: list[tuple[TopicPartition, int]] = []
        self.sent: list[Commit] = []
        self.held = False
        self.poll_delay_s = 0.0
        self._joined: set[str] = set()
        self._numbers = count(1)

    def join(self, member: FakeMember) -> None:
        """A member is ready for the next generation; a new one makes all others give their partitions back."""
        if member.member_id not in self.members:
            member.member_id = f"member-{next(self._numbers)}"
            self.members[member.member_id] = member
        self._joined.add(member.member_id)
        self._rebalance()

    def leave(self, member: FakeMember) -> None:
        """A member goes, or is put out; it may not know yet."""
        if self.members.pop(member.member_id, None) is not None:
            self._joined.discard(member.member_id)
            self._rebalance()

    def time_out(self, member: FakeMember) -> None:
        """Put out a member that has not joined again in time."""
        if member.member_id not in self._joined:
            self.leave(member)

    def judge(self, commit: Commit) -> Words:
        """Take a commit, or say why not."""
        simple = commit.generation < 0 and not self.members
        error: type[Exception] | None = None
        if not simple and commit.member_id not in self.members:
            error = kafka_errors.UnknownMemberIdError
        elif not simple and commit.generation != self.generation:
            error = kafka_errors.IllegalGenerationError
        if error is None:
            self.committed |= commit.offsets
            self.accepted.extend(commit.offsets.items())
        return dict.fromkeys(commit.offsets, error)

    def arrive(self, commit: Commit) -> None:
        """Let a commit reach the coordinator, behind those that its member sent before."""
        for each in self.sent[: self.sent.index(commit) + 1]:
            if each.member is commit.member and each.words is None:
                each.words = each.member.judged(each)

    def answer(self, commit: Commit) -> None:
        """Let the coordinator's words reach the member, if it still waits for them."""
        self.arrive(commit)
        self.sent.remove(commit)
        if not commit.answer.done() and commit.words is not None:
            commit.answer.set_result(commit.words)

    def lose(self, commit: Commit) -> None:
        """Break the connection: no answer comes, and what was not yet taken never arrives."""
        for each in [each for each in self.sent if each.member is commit.member]:
            self.sent.remove(each)
            if not each.answer.done():
                each.answer.set_exception(kafka_errors.KafkaConnectionError())

    def _rebalance(self) -> None:
        if self.members.keys() - self._joined:
            for member_id, member in self.members.items():
                if member_id not in self._joined:
                    member.rejoin()
            return
        self.generation += 1
        members = [self.members[member_id] for member_id in sorted(self.members)]
        self._joined.clear()
        for number, member in enumerate(members):
            member.assigned(self.generation, sorted(self.logs)[number :: len(members)])


class FakeMember:
    """Stands for `kafka_group.GroupMember`."""

    failure: Exception | None = None
    in_group = True

    def __init__(
        self, group: FakeGroup, settings: KafkaSettings, on_revoked: OnRevoked, on_assigned: OnAssigned
    ) -> None:
        self.owner = settings.client_id
        self.group = group
        self.generation = -1
        self.member_id = ""
        self.starts: dict[TopicPartition, int] = {}
        self._on_revoked = on_revoked
        self._on_assigned = on_assigned
        self._positions: dict[TopicPartition, int | None] = {}
        self._rejoining: asyncio.Task[None] | None = None
        self._gone = False

    async def start(self) -> None:
        """Join."""
        self.rejoin()

    async def stop(self, timeout_s: float) -> None:
        """Leave."""
        del timeout_s
        if not self._gone:
            self.die()
            self.group.leave(self)

    def die(self) -> None:
        """Do nothing more; the group finds out by itself."""
        self._gone = True
        if self._rejoining is not None:
            self._rejoining.cancel()

    def rejoin(self) -> None:
        """Hear by the next heartbeat that the group rebalances, or that it went on without this member."""
        if not self._gone and (self._rejoining is None or self._rejoining.done()):
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin())
        asyncio.get_running_loop().call_later(SESSION_S, self._time_out, self.generation)

    def assigned(self, generation: int, tps: Sequence[TopicPartition]) -> None:
        """Begin a generation."""
        self.generation = generation
        self._positions = dict.fromkeys(tps)
        self.starts = {}
        if not self._gone:
            with contextlib.suppress(Exception):  # as aiokafka does
                self._on_assigned(generation, self.member_id, tps)

    async def poll(
        self, tps: Iterable[TopicPartition], max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """What is in the logs behind the positions; after a delay those may be another generation's."""
        if self.group.poll_delay_s:
            await asyncio.sleep(self.group.poll_delay_s)
        found: dict[TopicPartition, Sequence[Record]] = {}
        for tp in tps:
            position = self._positions.get(tp)
            if position is None or max_records <= 0:
                continue
            log = self.group.logs[tp]
            records = [record for record in log.records if record.offset >= position][:max_records]
            max_records -= len(records)
            self._positions[tp] = records[-1].offset + 1 if records else log.end
            if records:
                found[tp] = records
        if not found:
            await asyncio.sleep(timeout_s)
        return found

    def read(self, tp: TopicPartition, topic_id: bytes, offset: int) -> None:
        """Read from there; a topic is never made again."""
        del topic_id
        self.seek(tp, offset)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read from there, if it is assigned."""
        if tp in self._positions:
            self._positions[tp] = offset
            self.starts.setdefault(tp, offset)

    def position(self, tp: TopicPartition) -> int | None:
        """The next offset to read."""
        return self._positions.get(tp)

    def highwater(self, tp: TopicPartition) -> int:
        """The log's end."""
        return self.group.logs[tp].end

    def unheard_s(self, tp: TopicPartition) -> float:
        """Always just told."""
        del tp
        return 0.0

    async def topic_id(self, topic: str) -> bytes:
        """As from a broker that knows none."""
        del topic
        return bytes(16)

    async def committed(self, tps: Sequence[TopicPartition], topic_id: bytes) -> Mapping[TopicPartition, int]:
        """The group's offsets of these, where it has one."""
        del topic_id
        return {tp: self.group.committed[tp] for tp in tps if tp in self.group.committed}

    async def log_starts(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Nothing is ever deleted."""
        return dict.fromkeys(tps, 0)

    async def log_ends(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The next offset of each."""
        return {tp: self.group.logs[tp].end for tp in tps}

    async def commit(self, generation: int, member_id: str, offsets: Mapping[TopicPartition, int]) -> Words:
        """Send a commit and wait for its answer."""
        answer = asyncio.get_running_loop().create_future()
        commit = Commit(self, generation, member_id, dict(offsets), answer)
        self.group.sent.append(commit)
        if not self.group.held:
            self.group.answer(commit)
        words: Words = await answer
        return words

    def judged(self, commit: Commit) -> Words:
        """What the coordinator says to a commit of this member."""
        return self.group.judge(commit)

    async def _rejoin(self) -> None:
        if self.member_id:
            await asyncio.sleep(_HEARTBEAT_S)
            if self.member_id not in self.group.members:
                self.generation, self.member_id = -1, ""
            await self._on_revoked()
        self._positions = {}
        self.group.join(self)

    def _time_out(self, generation: int) -> None:
        if self.generation == generation and (self.generation >= 0 or self._gone):
            self.group.time_out(self)
