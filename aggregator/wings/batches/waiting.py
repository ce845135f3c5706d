"""Records of chunks that wait for their turn: batches take turns, each with its chunks in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

from aggregator.sources.kafka.offsets import InFlightRecord
from aggregator.wings.batches.objects import Pointer

Taken = tuple[Pointer, InFlightRecord]


class Waiting:
    """By batch; the batch whose turn is next comes first."""

    def __init__(self) -> None:
        self._by_batch: dict[str, deque[Taken]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Pointer]:
        return (pointer for records in self._by_batch.values() for pointer, _ in records)

    def put(self, pointer: Pointer, record: InFlightRecord) -> None:
        self._by_batch.setdefault(pointer.batch, deque()).append((pointer, record))
        self._count += 1

    def put_back(self, taken: Taken) -> None:
        """It goes first again in its batch."""
        self._by_batch.setdefault(taken[0].batch, deque()).appendleft(taken)
        self._count += 1

    def take(self, may_go: Callable[[Pointer], bool]) -> Taken | None:
        """The next record, of the first batch that may go; its batch's turn is over."""
        for batch, records in self._by_batch.items():
            if may_go(records[0][0]):
                taken = records.popleft()
                del self._by_batch[batch]
                if records:
                    self._by_batch[batch] = records
                self._count -= 1
                return taken
        return None

    def drop(self, gone: Collection[InFlightRecord]) -> None:
        kept = {
            batch: deque(each for each in records if each[1] not in gone) for batch, records in self._by_batch.items()
        }
        self._by_batch = {batch: records for batch, records in kept.items() if records}
        self._count = sum(map(len, self._by_batch.values()))
