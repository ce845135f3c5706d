"""What is known of each assigned partition: how far it was read, handed out and committed, and why it waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition

from aggregator.sources.kafka.consumer.committed_offset import CommittedOffset, Lease
from aggregator.sources.kafka.consumer.topic_ids import NO_ID, id_text
from aggregator.sources.kafka.records import Record

_RESUME_SHARE = 0.75


@dataclass(slots=True, eq=False)
class Partition:
    """One partition during one assignment of it; placed once its start position is known.

    `read_to` is the next offset to ask the broker for, `delivered_to` the next to hand out, `committed` what the
    group is known to have (None: nothing yet, so that even an unmoved start position is committed). `has_chunk`:
    records were read and wait to be handed out.
    """

    tp: TopicPartition
    committed_offset: CommittedOffset | None = None
    topic_id: bytes = NO_ID
    committed: int | None = None
    read_to: int = 0
    delivered_to: int = 0
    log_end: int = 0
    has_chunk: bool = False
    over_span: bool = False
    suspect: bool = False
    blocked_until_s: float = 0.0
    corrupt_at: int | None = None

    def place(self, offset: int, committed: int | None, topic_id: bytes = NO_ID) -> None:
        """Start reading at `offset` of the topic with this id; leases of before complete without effect."""
        self.committed_offset = CommittedOffset(self.tp.topic, self.tp.partition, offset, id_text(topic_id))
        self.topic_id = topic_id
        self.read_to = self.delivered_to = offset
        self.committed = committed
        self.suspect = False

    def deliver(self, records: Iterable[Record], read_to: int) -> list[Lease]:
        """Lease records that were read; offsets up to `read_to` that held none count as completed after them."""
        assert self.committed_offset is not None, (
            "Records were read of a partition that was never placed. This is a bug."
        )
        deliver = self.committed_offset.deliver
        leases = [deliver(record.offset, record) for record in records]
        self.skip_to(read_to)
        return leases

    def skip_to(self, offset: int) -> None:
        """Pass over offsets that will never hold a record."""
        assert self.committed_offset is not None, (
            "An offset was skipped in a partition that was never placed. This is a bug."
        )
        self.committed_offset.skip_to(offset)
        self.read_to = max(self.read_to, offset)
        self.delivered_to = max(self.delivered_to, offset)

    def watch_span(self, max_commit_span: int) -> None:
        """Pause above the cap; resume only once well below it.

        What is unfinished counts too: of a topic that serves several models, records for one that is away may
        wait while the topic's own model is well and nothing else would stop the intake.
        """
        assert self.committed_offset is not None, (
            "The span of a partition that was never placed was watched. This is a bug."
        )
        limit = max_commit_span * _RESUME_SHARE if self.over_span else max_commit_span
        self.over_span = max(self.committed_offset.span, self.committed_offset.unfinished) > limit


class Assignment:
    """The partitions of one generation of the group, from their assignment until they are given back.

    `generation` and `member_id` go with every commit, so that the coordinator refuses those of an earlier life.
    `over`: no more is read or handed out; `fenced`: nothing more is committed either; `stale`: the group went on
    without this member.
    """

    def __init__(self, generation: int, member_id: str, tps: Iterable[TopicPartition]) -> None:
        self.generation = generation
        self.member_id = member_id
        self.partitions: Mapping[TopicPartition, Partition] = {tp: Partition(tp) for tp in tps}
        self.over = False
        self.fenced = False
        self.stale = False

    @property
    def placed(self) -> Sequence[Partition]:
        """The partitions whose start position is known."""
        return [partition for partition in self.partitions.values() if partition.committed_offset is not None]

    @property
    def unfinished(self) -> int:
        """Leases that are out, or completed behind one that is."""
        return sum(
            partition.committed_offset.unfinished for partition in self.placed if partition.committed_offset is not None
        )

    def readable(self, held_topics: frozenset[str], max_commit_span: int, now_s: float) -> list[Partition]:
        """The partitions that may be read now."""
        if self.over:
            return []
        placed = self.placed
        for partition in placed:
            partition.watch_span(max_commit_span)
        return [
            partition
            for partition in placed
            if not partition.over_span
            and not partition.has_chunk
            and partition.tp.topic not in held_topics
            and partition.blocked_until_s <= now_s
        ]

    def half_span_holders(self, max_commit_span: int) -> list[Lease]:
        """Leases that hold back a committed offset whose span passed half of its cap: their inputs are to be aged."""
        committed_offsets = (partition.committed_offset for partition in self.placed)
        return [
            committed_offset.holder
            for committed_offset in committed_offsets
            if committed_offset is not None
            and committed_offset.holder is not None
            and committed_offset.span > max_commit_span / 2
        ]

    def moved(self) -> dict[TopicPartition, int]:
        """What to commit: positions that the group does not have yet."""
        return {
            partition.tp: partition.committed_offset.position
            for partition in self.partitions.values()
            if partition.committed_offset is not None and partition.committed_offset.position != partition.committed
        }

    def fence(self) -> list[Lease]:
        """Give every partition back; returns the leases that nobody completed."""
        self.over = self.fenced = True
        return [
            lease
            for partition in self.placed
            if partition.committed_offset
            for lease in partition.committed_offset.fence()
        ]
