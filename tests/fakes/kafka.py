"""An in-memory Kafka: topics, a consumer group that rebalances, and switches for what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.consumer.committed_offset import CommittedOffset, Lease
from aggregator.sources.kafka.consumer.reader import IntakeCounts
from aggregator.sources.kafka.records import OutgoingRecord
from tests.fakes.records import FakeRecord

TopicPartition = tuple[str, int]


@dataclass(slots=True)
class Log:
    """One partition; `start` rises as retention removes records."""

    records: list[FakeRecord] = field(default_factory=list[FakeRecord])
    start: int = 0


class FakeKafka:
    """The broker. `down` stops every answer, `refusals` are final for their topic's records, `leaderless` take none."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.commits: list[tuple[TopicPartition, int]] = []
        self.down = False
        self.refusals: dict[str, Exception] = {}
        self.leaderless: set[tuple[str, int]] = set()
        self.max_message_bytes = 1_000_000
        self.generation = 0
        self._members: list[FakeDeliveries] = []
        self._rebalancing = asyncio.Lock()

    def create_topic(self, name: str, partitions: int) -> None:
        """Add a topic without records."""
        self.logs |= {(name, partition): Log() for partition in range(partitions)}

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions; none if it is not there."""
        return [partition for name, partition in self.logs if name == topic]

    def append(self, tp: TopicPartition, record: OutgoingRecord) -> None:
        """Write one record."""
        log = self.logs[tp]
        log.records.append(FakeRecord(*tp, len(log.records), 0, record.key, record.value, tuple(record.headers)))
        self.wake()

    def expire(self, tp: TopicPartition, start: int) -> None:
        """Let retention remove everything before `start`."""
        self.logs[tp].start = start

    def wake(self) -> None:
        """Let every member look again."""
        for member in self._members:
            member.wake()

    async def join(self, member: FakeDeliveries) -> None:
        """Add a member to the group."""
        await self._rebalance([*self._members, member])

    async def leave(self, member: FakeDeliveries) -> None:
        """Remove a member from the group."""
        await self._rebalance([each for each in self._members if each is not member])

    async def commit(self, generation: int, offsets: Mapping[TopicPartition, int]) -> None:
        """Take a commit of this generation. Raises KafkaError."""
        if self.down:
            raise kafka_errors.GroupCoordinatorNotAvailableError
        if generation != self.generation:
            raise kafka_errors.IllegalGenerationError
        self.committed |= offsets
        self.commits.extend(offsets.items())

    async def _rebalance(self, members: list[FakeDeliveries]) -> None:
        async with self._rebalancing:
            await asyncio.gather(*(member.give_back() for member in self._members))
            self.generation += 1
            self._members = members
            for number, member in enumerate(members):
                mine = [tp for tp in self.logs if tp[0] in member.topics]
                await member.take(self.generation, mine[number :: len(members)])


class FakeDeliveries:
    """ports.Deliveries over FakeKafka, with all that KafkaDeliveries offers."""

    def __init__(self, kafka: FakeKafka, settings: KafkaSettings, on_fenced: Callable[[Sequence[Lease]], None]) -> None:
        self.topics = frozenset(topic.name for topic in settings.topics)
        self.counts = IntakeCounts()
        self._kafka = kafka
        self._settings = settings
        self._on_fenced = on_fenced
        self._generation = -1
        self._committed_offsets: dict[TopicPartition, CommittedOffset] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._over: set[TopicPartition] = set()
        self._held: frozenset[str] = frozenset()
        self._fetching = True
        self._draining = False
        self._wakened = asyncio.Event()
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Be a member of the group until `close`."""
        await self._kafka.join(self)
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._settings.commit_interval_s)
            await self._commit()
            self.wake()

    async def fetch(self) -> Sequence[Lease]:
        """The next records; none only once fetching is stopped."""
        while self._fetching:
            leases = [] if self._kafka.down or self._draining else self._deliver()
            if leases:
                return leases
            self._wakened.clear()
            await self._wakened.wait()
        return ()

    def hold(self, topics: frozenset[str]) -> None:
        """Pause exactly these topics."""
        self._held = topics
        self.wake()

    def stop_fetching(self) -> None:
        """Hand out no more."""
        self._fetching = False
        self.wake()

    async def close(self, timeout_s: float) -> None:
        """Commit, fence, leave."""
        self.stop_fetching()
        self._closing.set()
        await self._commit()
        self._fence()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._kafka.leave(self), timeout_s)

    @property
    def healthy(self) -> bool:
        """Whether it has joined a broker that answers."""
        return self._generation >= 0 and not self._kafka.down

    def half_span_holders(self) -> Sequence[Lease]:
        """Leases that hold back a wide span."""
        half = self._settings.max_commit_span / 2
        return [
            each.holder for each in self._committed_offsets.values() if each.span > half and each.holder is not None
        ]

    def lag_records(self) -> Mapping[TopicPartition, int]:
        """Log end minus position."""
        return {tp: len(self._kafka.logs[tp].records) - position for tp, position in self._positions.items()}

    def uncommitted_span(self) -> Mapping[TopicPartition, int]:
        """The span of each committed offset."""
        return {tp: committed_offset.span for tp, committed_offset in self._committed_offsets.items()}

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that wait, held or over their span cap."""
        return frozenset(tp for tp in self._committed_offsets if tp in self._over or tp[0] in self._held)

    def wake(self) -> None:
        """Look again at what can be handed out."""
        self._wakened.set()

    async def give_back(self) -> None:
        """Drain, commit, fence."""
        if not self._committed_offsets:
            return
        self.counts.rebalances += 1
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                while any(committed_offset.unfinished for committed_offset in self._committed_offsets.values()):  # noqa: ASYNC110 - as the real one
                    await asyncio.sleep(0.001)
        await self._commit()
        self._fence()
        self._draining = False

    async def take(self, generation: int, tps: Sequence[TopicPartition]) -> None:
        """Start where the group left off, or at the start, which is committed."""
        self._generation = generation
        starts = {tp: self._kafka.committed.get(tp, self._kafka.logs[tp].start) for tp in tps}
        self._committed_offsets = {tp: CommittedOffset(*tp, start) for tp, start in starts.items()}
        self._positions = dict(starts)
        new = {tp: start for tp, start in starts.items() if tp not in self._kafka.committed}
        if new:
            await self._kafka.commit(generation, new)
        self.wake()

    def _deliver(self) -> list[Lease]:
        leases: list[Lease] = []
        for tp, committed_offset in self._committed_offsets.items():
            limit = self._settings.max_commit_span * (0.75 if tp in self._over else 1)
            (self._over.add if committed_offset.span > limit else self._over.discard)(tp)
            if tp in self._over or tp[0] in self._held:
                continue
            log = self._kafka.logs[tp]
            if self._positions[tp] < log.start:
                self.counts.deleted_unread += log.start - self._positions[tp]
                committed_offset.skip_to(log.start)
                self._positions[tp] = log.start
            room = self._settings.max_poll_records - len(leases)
            records = log.records[self._positions[tp] : self._positions[tp] + room]
            leases.extend(committed_offset.deliver(record.offset, record) for record in records)
            self._positions[tp] += len(records)
        return leases

    async def _commit(self) -> None:
        positions = {
            tp: committed_offset.position
            for tp, committed_offset in self._committed_offsets.items()
            if not committed_offset.fenced
        }
        moved = {tp: position for tp, position in positions.items() if self._kafka.committed.get(tp) != position}
        if not moved:
            return
        try:
            await self._kafka.commit(self._generation, moved)
        except kafka_errors.KafkaError as error:
            failures = self.counts.commit_failures
            failures[type(error).__name__] = failures.get(type(error).__name__, 0) + 1

    def _fence(self) -> None:
        unfinished = [
            lease for committed_offset in self._committed_offsets.values() for lease in committed_offset.fence()
        ]
        self._committed_offsets, self._positions = {}, {}
        if unfinished:
            self._on_fenced(unfinished)
