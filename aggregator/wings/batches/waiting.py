"""Records that wait for their turn: of chunks, where batches take turns; of batches, where tenants do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

from aggregator.sources.kafka.offsets import InFlightRecord
from aggregator.wings.batches.objects import Pointer

Taken = tuple[Pointer, InFlightRecord]


class Waiting:
    """By what takes turns, `of` each record; whose turn is next comes first, and each has its records in order."""

    def __init__(self, of: Callable[[Pointer], str] = lambda pointer: pointer.batch) -> None:
        self._of = of
        self._records: dict[str, deque[Taken]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Pointer]:
        return (pointer for records in self._records.values() for pointer, _ in records)

    def put(self, pointer: Pointer, record: InFlightRecord) -> None:
        self._records.setdefault(self._of(pointer), deque()).append((pointer, record))
        self._count += 1

    def put_back(self, taken: Taken) -> None:
        """It goes first again among those of its kind."""
        self._records.setdefault(self._of(taken[0]), deque()).appendleft(taken)
        self._count += 1

    def take(self, may_go: Callable[[Pointer], bool]) -> Taken | None:
        """The next record, of the first one in turn that may go; its turn is over."""
        for name, records in self._records.items():
            if may_go(records[0][0]):
                taken = records.popleft()
                del self._records[name]
                if records:
                    self._records[name] = records
                self._count -= 1
                return taken
        return None

    def drop(self, gone: Collection[InFlightRecord]) -> None:
        kept = {name: deque(each for each in records if each[1] not in gone) for name, records in self._records.items()}
        self._records = {name: records for name, records in kept.items() if records}
        self._count = sum(map(len, self._records.values()))
