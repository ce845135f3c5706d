"""The state of each assigned partition: how far it was read, handed out and committed, and why it waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiokafka import TopicPartition

from aggregator.sources.kafka.consumer.committed_offset import CommittedOffset, InFlightRecord
from aggregator.sources.kafka.consumer.topic_ids import NO_ID, id_text
from aggregator.sources.kafka.records import Record

_RESUME_SHARE = 0.75


class Partition:
    """One partition whose start position is known, during one assignment of it.

    `fetched` are records that wait to be handed out, `read_to` is the next offset to ask the broker for, `delivered_to`
    the next to hand out, `committed` what the group is known to have (None: nothing yet, so that even an unmoved start
    position is committed).
    """

    def __init__(self, tp: TopicPartition, offset: int, committed: int | None, topic_id: bytes = NO_ID) -> None:
        self.tp = tp
        self.committed_offset = CommittedOffset(tp.topic, tp.partition, offset, id_text(topic_id))
        self.topic_id = topic_id
        self.committed = committed
        self.fetched: Sequence[Record] = ()
        self.read_to = self.delivered_to = offset
        self.log_end = 0
        self.over_span = False
        self.suspect = False
        self.blocked_until_s = 0.0
        self.corrupt_at: int | None = None

    def deliver(self) -> list[InFlightRecord]:
        """Hand out what was fetched; offsets up to `read_to` that held no record count as completed after it."""
        deliver = self.committed_offset.deliver
        in_flight_records = [deliver(record) for record in self.fetched]
        self.fetched = ()
        self.skip_to(self.read_to)
        return in_flight_records

    def skip_to(self, offset: int) -> None:
        """Skip offsets that will never hold a record."""
        self.committed_offset.skip_to(offset)
        self.read_to = max(self.read_to, offset)
        self.delivered_to = max(self.delivered_to, offset)

    def watch_span(self, max_commit_span: int) -> None:
        """Pause above the cap; resume only once well below it.

        What is unfinished counts too: of a topic that serves several models, records for one that is away may
        wait while the topic's own model is well and nothing else would stop the intake.
        """
        limit = max_commit_span * _RESUME_SHARE if self.over_span else max_commit_span
        self.over_span = max(self.committed_offset.span, self.committed_offset.unfinished) > limit


class Assignment:
    """The partitions of one generation of the group, from their assignment until they are revoked.

    `generation` and `member_id` go with every commit, so that the coordinator refuses those of a former generation.
    `partitions` are those whose start position is known. `over`: no more is read or handed out; `fenced`: nothing more
    is committed either; `stale`: the group went on without this member.
    """

    def __init__(self, generation: int, member_id: str, tps: Iterable[TopicPartition]) -> None:
        self.generation = generation
        self.member_id = member_id
        self.tps = tuple(tps)
        self.partitions: dict[TopicPartition, Partition] = {}
        self.over = False
        self.fenced = False
        self.stale = False

    def place(self, tp: TopicPartition, offset: int, committed: int | None, topic_id: bytes = NO_ID) -> None:
        """Read a partition from `offset` of the topic with this id on."""
        self.partitions[tp] = Partition(tp, offset, committed, topic_id)

    @property
    def unfinished(self) -> int:
        """Records in flight, and those completed behind one that is."""
        return sum(partition.committed_offset.unfinished for partition in self.partitions.values())

    def readable(self, paused_topics: frozenset[str], max_commit_span: int, now_s: float) -> list[Partition]:
        """The partitions that may be read now."""
        if self.over:
            return []
        for partition in self.partitions.values():
            partition.watch_span(max_commit_span)
        return [
            partition
            for partition in self.partitions.values()
            if not partition.over_span
            and not partition.fetched
            and partition.tp.topic not in paused_topics
            and partition.blocked_until_s <= now_s
        ]

    def deliver(self, paused_topics: frozenset[str]) -> list[InFlightRecord]:
        """Hand out what was fetched and is not paused; nothing once this is over."""
        if self.over:
            return []
        return [
            in_flight
            for partition in self.partitions.values()
            if partition.fetched and partition.tp.topic not in paused_topics
            for in_flight in partition.deliver()
        ]

    def half_span_holders(self, max_commit_span: int) -> list[InFlightRecord]:
        """The records that hold back a committed offset past half of the span's cap: to be promoted in the queue."""
        offsets = (partition.committed_offset for partition in self.partitions.values())
        return [each.holder for each in offsets if each.holder is not None and each.span > max_commit_span / 2]

    def moved(self) -> dict[TopicPartition, int]:
        """What to commit: positions that the group does not have yet."""
        return {
            partition.tp: partition.committed_offset.position
            for partition in self.partitions.values()
            if partition.committed_offset.position != partition.committed
        }

    def fence(self) -> list[InFlightRecord]:
        """End with the revocation of all partitions; returns the records that are not completed."""
        self.over = self.fenced = True
        return [in_flight for partition in self.partitions.values() for in_flight in partition.committed_offset.fence()]
