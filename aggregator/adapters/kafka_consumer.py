"""Read the query topics as a member of the consumer group: leased records in, commits out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aggregator.core.watermark import Lease
from aggregator.settings import KafkaSettings

OnFenced = Callable[[Sequence[Lease]], None]
"""Hears of the leases nobody settled before their partition was given back: drop what is still queued of them."""


@dataclass(slots=True)
class IntakeCounts:
    """What happened so far; only ever rises."""

    rebalances: int = 0
    lost_to_retention: int = 0
    corrupt_batches: int = 0
    skipped_corrupt_records: int = 0
    commit_failures: dict[str, int] = field(default_factory=dict[str, int])


class KafkaDeliveries:
    """ports.Deliveries over aiokafka. `run` does the work; everything else only talks to it."""

    def __init__(self, settings: KafkaSettings, on_fenced: OnFenced) -> None:
        self.counts = IntakeCounts()

    async def run(self) -> None:
        """Join the group, fetch, commit, rejoin; until `close` has finished, or cancelled. Outlives any outage."""
        raise NotImplementedError

    async def fetch(self) -> Sequence[Lease]:
        """The next records, at least one, of partitions that are not held; nothing only once fetching is stopped."""
        raise NotImplementedError

    def hold(self, topics: frozenset[str]) -> None:
        """Pause exactly these topics' partitions (those over their span cap stay paused on their own)."""
        raise NotImplementedError

    def stop_fetching(self) -> None:
        """Hand out no more records; leases that are out go on settling and are committed."""
        raise NotImplementedError

    async def close(self, timeout_s: float) -> None:
        """Commit what is settled, fence the rest, leave the group; within the time-out, broker or no broker."""
        raise NotImplementedError

    @property
    def healthy(self) -> bool:
        """Whether the group's coordinator answers and this member has joined: ready, as far as intake goes."""
        raise NotImplementedError

    def half_span_holders(self) -> Sequence[Lease]:
        """Leases that hold back a watermark whose span passed half of its cap: their inputs are to be aged."""
        raise NotImplementedError

    def lag_records(self) -> Mapping[tuple[str, int], int]:
        """Log end minus fetch position of each assigned partition (topic, number)."""
        raise NotImplementedError

    def uncommitted_span(self) -> Mapping[tuple[str, int], int]:
        """Records between the watermark and the highest settled one, of each assigned partition."""
        raise NotImplementedError

    def paused(self) -> int:
        """How many partitions wait, held or over their span cap."""
        raise NotImplementedError
