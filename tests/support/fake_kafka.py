"""An in-memory Kafka beneath the real consumer: logs, a group's coordinator, a producer, and what goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.partitioner import murmur2
from typing_extensions import override

from aggregator.admission.ledger import MEMORY_BYTES, Intake, Ledger
from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.offsets import Committed, InFlightRecord, Record
from aggregator.sources.kafka.outgoing import Delivered, OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.records import FakeRecord

SESSION_S = 5.0
_HEARTBEAT_S = 0.1
_NO_LEADER_S = 0.1

Words = Mapping[TopicPartition, type[Exception] | None]


@dataclass(slots=True)
class Log:
    """One partition; `start` rises as retention removes records, `end` is the next offset."""

    tp: TopicPartition
    records: list[FakeRecord] = field(default_factory=list[FakeRecord])
    start: int = 0
    end: int = 0

    def append(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] = (), *, gap: int = 0
    ) -> FakeRecord:
        offset = self.end + gap
        record = FakeRecord(self.tp.topic, self.tp.partition, offset, 0, key, value, tuple(headers))
        self.records.append(record)
        self.end = offset + 1
        return record

    def read(self, position: int, max_records: int) -> Sequence[FakeRecord]:
        """The next records. Raises OffsetOutOfRangeError before the start."""
        if position < self.start:
            raise kafka_errors.OffsetOutOfRangeError({self.tp: position})
        return [record for record in self.records if record.offset >= position][:max_records]


@dataclass(slots=True, eq=False)
class Commit:
    """A commit on its way to the coordinator; `words` once it was judged."""

    member: FakeMember
    generation: int
    member_id: str
    offsets: Mapping[TopicPartition, int]
    metadata: Mapping[TopicPartition, str]
    answer: asyncio.Future[Words]
    words: Words | None = None


@dataclass(slots=True, eq=False)
class Flight:
    """Records on their way to the broker, and what it will say of each."""

    producer: FakeProducer
    records: Sequence[OutgoingRecord]
    landed: asyncio.Future[Sequence[Exception | None]]


class FakeKafka:
    """Logs and one group's coordinator. While `held`, commits wait until the test lets them arrive and be answered.

    `refusals` are final for their topic's records, `leaderless` partitions take none; while `flights_held`, what is
    produced waits in `under_way`. `written` is what ever was, by topic and key.
    """

    def __init__(self, *topics: str) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        for name in topics:
            self.create_topic(name)
        self.refusals: dict[str, Exception] = {}
        self.leaderless: set[tuple[str, int]] = set()
        self.max_message_bytes = 1_000_000
        self.flights_held = False
        self.under_way: list[Flight] = []
        self.written: set[tuple[str, bytes]] = set()
        self.generation = 0
        self.members: dict[str, FakeMember] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, str] = {}
        self.topic_ids: dict[str, str] = {}
        self.most_metadata_bytes = 4096
        self.sent: list[Commit] = []
        self.held = False
        self.poll_delay_s = 0.0
        self._joined: set[str] = set()
        self._numbers = count(1)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        for tp in (TopicPartition(name, partition) for partition in range(partitions)):
            self.logs[tp] = Log(tp)

    def partitions(self, topic: str) -> list[int]:
        return [tp.partition for tp in self.logs if tp.topic == topic]

    def records(self, topic: str, partition: int = 0) -> list[FakeRecord]:
        return self.logs[TopicPartition(topic, partition)].records

    def append(self, record: OutgoingRecord) -> None:
        self.logs[self.place(record)].append(record.key, record.value, record.headers)
        self.written.add((record.topic, record.key or b""))

    def produce(self, record: OutgoingRecord) -> Exception | None:
        partitions = self.partitions(record.topic)
        if record.topic in self.refusals:
            return self.refusals[record.topic]
        if not partitions or record.partition not in {None, *partitions}:
            missing: Exception = kafka_errors.UnknownTopicOrPartitionError(record.topic)
            return missing
        if len(record.value or b"") > self.max_message_bytes:
            too_large: Exception = kafka_errors.MessageSizeTooLargeError()
            return too_large
        self.append(record)
        return None

    def place(self, record: OutgoingRecord) -> TopicPartition:
        if record.partition is not None:
            return TopicPartition(record.topic, record.partition)
        partitions = len(self.partitions(record.topic)) or 1
        return TopicPartition(record.topic, (murmur2(record.key or b"") & 0x7FFFFFFF) % partitions)

    def write(self, flight: Flight) -> None:
        """Let records be written, but nothing be said of it."""
        for record in flight.records:
            self.produce(record)

    def acknowledge(self, flight: Flight, refusals: Sequence[Exception | None] = ()) -> None:
        refused = [*refusals, *([None] * len(flight.records))]
        errors = [each or self.produce(record) for record, each in zip(flight.records, refused, strict=False)]
        self.under_way.remove(flight)
        flight.producer.tell(flight, errors)

    def consumer(
        self,
        settings: KafkaSettings,
        on_fenced: Callable[[Sequence[InFlightRecord]], None] = lambda _: None,
        member: type[FakeMember] | None = None,
        counts: Metrics | None = None,
        intake: Intake | None = None,
    ) -> KafkaConsumer:
        """The real intake as a member of this group."""
        made: Any = partial(member or FakeMember, self)
        metrics = counts or Metrics(MetricsBuffer())
        part = intake or Ledger(MEMORY_BYTES).intake
        return KafkaConsumer(settings, on_fenced, metrics, client=made, look_up=self.look_up, intake=part)

    async def look_up(
        self, settings: KafkaSettings, tps: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, Committed]:
        """The group's offsets, -1 where it has none."""
        del settings
        return {
            tp: Committed(self.committed.get(tp, -1), self.metadata.get(tp, ""), self.topic_ids.get(tp.topic, ""))
            for tp in tps
        }

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
        simple = commit.generation < 0 and not self.members
        error: type[Exception] | None = None
        if not simple and commit.member_id not in self.members:
            error = kafka_errors.UnknownMemberIdError
        elif not simple and commit.generation != self.generation:
            error = kafka_errors.IllegalGenerationError
        if error is None and max(map(len, commit.metadata.values()), default=0) > self.most_metadata_bytes:
            error = kafka_errors.OffsetMetadataTooLargeError
        if error is None:
            self.committed |= commit.offsets
            self.metadata |= commit.metadata
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
            tps = sorted(tp for tp in self.logs if tp.topic in member.subscribed)
            member.assigned(self.generation, tps[number :: len(members)])


class FakeMember:
    """A consumer in the group, in place of `AIOKafkaConsumer`; `failure` is what its calls raise from then on."""

    failure: Exception | None = None

    def __init__(self, kafka: FakeKafka, settings: KafkaSettings) -> None:
        self.owner = settings.client.client_id
        self.subscribed: frozenset[str] = frozenset()
        self.kafka = kafka
        self.generation = -1
        self.member_id = ""
        self.starts: dict[TopicPartition, int] = {}
        self._unplaced: set[TopicPartition] = set()
        self._listener: Any = None
        self._positions: dict[TopicPartition, int | None] = {}
        self._rejoining: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._gone = False

    async def start(self) -> None:
        """Connect."""

    def subscribe(self, topics: Sequence[str], listener: Any) -> None:
        self.subscribed = frozenset(topics)
        self._listener = listener
        self.rejoin()

    async def stop(self) -> None:
        if not self._gone:
            self.die()
            self.kafka.leave(self)

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
        self.generation = generation
        self._positions = dict.fromkeys(tps)
        self._unplaced = set(tps)  # until the first seek, what is committed was read by the assignment before
        if not self._gone:
            self._telling = asyncio.get_running_loop().create_task(self._listener.on_partitions_assigned(set(tps)))

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: int, max_records: int
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """What is in the logs behind the positions; after a delay those may be another generation's."""
        if self.failure is not None:
            raise self.failure
        if self.kafka.poll_delay_s:
            await asyncio.sleep(self.kafka.poll_delay_s)
        found: dict[TopicPartition, Sequence[Record]] = {}
        for tp in tps:
            position = self._positions.get(tp)
            if position is None or max_records <= 0:
                continue
            log = self.kafka.logs[tp]
            records = log.read(position, max_records)
            max_records -= len(records)
            self._positions[tp] = records[-1].offset + 1 if records else log.end
            if records:
                found[tp] = records
        if not found:
            await asyncio.sleep(timeout_ms / 1000)
        return found

    async def topics(self) -> set[str]:
        return {tp.topic for tp in self.kafka.logs}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(self.kafka.partitions(topic))

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read from there, if it is assigned."""
        if tp not in self._positions:
            raise kafka_errors.IllegalStateError
        self._positions[tp] = offset
        if tp in self._unplaced:
            self._unplaced.discard(tp)
            self.starts[tp] = offset

    async def position(self, tp: TopicPartition) -> int:
        position = self._positions.get(tp)
        if position is None:
            raise kafka_errors.IllegalStateError
        return position

    def highwater(self, tp: TopicPartition) -> int:
        return self.kafka.logs[tp].end

    def last_poll_timestamp(self, tp: TopicPartition) -> int:
        """Always just told."""
        del tp
        return int(time.time() * 1000)

    async def beginning_offsets(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self.kafka.logs[tp].start for tp in tps}

    async def end_offsets(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self.kafka.logs[tp].end for tp in tps}

    async def committed(self, tp: TopicPartition) -> int | None:
        return self.kafka.committed.get(tp)

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        answer = asyncio.get_running_loop().create_future()
        positions = {tp: offset for tp, (offset, _) in offsets.items()}
        metadata = {tp: said for tp, (_, said) in offsets.items()}
        commit = Commit(self, self.generation, self.member_id, positions, metadata, answer)
        self.kafka.sent.append(commit)
        if not self.kafka.held:
            self.kafka.answer(commit)
        words: Words = await answer
        for error in words.values():
            if error is not None:
                raise kafka_errors.CommitFailedError from error()

    def judged(self, commit: Commit) -> Words:
        """What the coordinator says to a commit of this member."""
        return self.kafka.judge(commit)

    async def _rejoin(self) -> None:
        if self.member_id:
            await asyncio.sleep(_HEARTBEAT_S)
            if self.member_id not in self.kafka.members:
                self.generation, self.member_id = -1, ""
            await self._listener.on_partitions_revoked(set(self._positions))
        self._positions = {}
        self.kafka.join(self)

    def _time_out(self, generation: int) -> None:
        if self.generation == generation and (self.generation >= 0 or self._gone):
            self.kafka.time_out(self)


class FakeProducer(KafkaProducer):
    """The producer of a FakeKafka; `acknowledged` is what it heard of, by topic and key."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.acknowledged: set[tuple[str, bytes]] = set()
        self._kafka = kafka
        self._closed = False

    @property
    @override
    def trouble(self) -> str | None:
        return None

    @override
    async def start(self) -> None:
        """Nothing to do."""

    @override
    async def send(self, records: Sequence[OutgoingRecord]) -> AsyncIterator[Delivered]:
        """Write each record, or say why not; waits for partitions without a leader. Raises ProducerClosed."""
        left: Sequence[int] = range(len(records))
        while left:
            now = [at for at in left if self._kafka.place(records[at]) not in self._kafka.leaderless]
            errors = await self._fly([records[at] for at in now])
            if now:
                yield list(zip(now, errors, strict=True))
            left = [at for at in left if at not in now]
            if left:
                await asyncio.sleep(_NO_LEADER_S)

    @override
    async def close(self, timeout_s: float) -> None:
        """Send no more; what is under way may still arrive."""
        del timeout_s
        self._closed = True
        for flight in self._kafka.under_way:
            if flight.producer is self and not flight.landed.done():
                flight.landed.set_exception(kafka_errors.ProducerClosed())

    def tell(self, flight: Flight, errors: Sequence[Exception | None]) -> None:
        """The broker answered; whoever sent may wait for it no more."""
        if not flight.landed.done():
            for record, error in zip(flight.records, errors, strict=True):
                if error is None:
                    self.acknowledged.add((record.topic, record.key or b""))
            flight.landed.set_result(errors)

    async def _fly(self, records: Sequence[OutgoingRecord]) -> Sequence[Exception | None]:
        if self._closed:
            raise kafka_errors.ProducerClosed
        flight = Flight(self, records, asyncio.get_running_loop().create_future())
        self._kafka.under_way.append(flight)
        if not self._kafka.flights_held:
            self._kafka.acknowledge(flight)
        return await flight.landed
