"""Large records wait apart from the small ones, in order; those of held topics wait longer."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.sources.kafka.offsets import Fetched
from aggregator.sources.kafka.waiting import LargeRecords, size_bytes
from tests.support.records import in_flight_of

MIB = 1024 * 1024


def fetched(size: int, topic: str = "a") -> Fetched:
    return Fetched(in_flight_of(b"x" * size, topic=topic), 0.0, 0.0)


def opened() -> LargeRecords:
    return LargeRecords()


def topics(records: Sequence[Fetched]) -> list[str]:
    return [each.in_flight.committed_offset.topic for each in records]


async def test_records_are_taken_in_order_a_few_small_or_one_large_at_a_time() -> None:
    records = opened()
    sizes = [100_000, 100_000, 100_000, 3 * MIB, 1]
    records.put([fetched(size) for size in sizes[:4]])
    records.put([fetched(sizes[4])])
    taken = [[size_bytes(each.in_flight) for each in await records.take()] for _ in range(4)]
    assert taken == [[100_000, 100_000], [100_000], [3 * MIB], [1]]


async def test_what_waits_at_the_end_or_was_given_back_is_for_the_next_reader() -> None:
    records = opened()
    given_back = fetched(5, "a")
    records.put([given_back, fetched(5, "b")])
    given_back.in_flight.committed_offset.fence()
    records.drop_fenced()
    assert topics(await records.take()) == ["b"]
    records.put([fetched(5)])
    records.close()
    records.put([fetched(5)])
    assert not await records.take()
