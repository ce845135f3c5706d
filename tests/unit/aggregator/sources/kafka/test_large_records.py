"""Large records wait apart from the small ones, in order and bounded; those of held topics wait longer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aggregator.sources.kafka.large_records import Fetched, LargeRecords, size_bytes
from tests.fakes.records import in_flight_of

MIB = 1024 * 1024


def fetched(size: int, topic: str = "a") -> Fetched:
    return Fetched(in_flight_of(b"x" * size, topic=topic), 0.0, 0.0)


def opened() -> LargeRecords:
    return LargeRecords(lambda: None)


def topics(records: Sequence[Fetched]) -> list[str]:
    return [each.in_flight.committed_offset.topic for each in records]


async def test_records_are_taken_in_their_order_a_few_small_ones_at_a_time_or_one_that_is_larger() -> None:
    records = opened()
    sizes = [100_000, 100_000, 100_000, 3 * MIB, 1]
    records.put([fetched(size) for size in sizes[:4]])
    records.put([fetched(sizes[4])])
    taken = [[size_bytes(each.in_flight) for each in await records.take()] for _ in range(4)]
    assert taken == [[100_000, 100_000], [100_000], [3 * MIB], [1]]


async def test_who_takes_waits_for_the_next_and_for_the_end() -> None:
    records = opened()
    taking = asyncio.create_task(records.take())
    await asyncio.sleep(0)
    assert not taking.done()
    records.put([fetched(5)])
    assert len(await taking) == 1
    taking = asyncio.create_task(records.take())
    await asyncio.sleep(0)
    records.close()
    assert not await taking


async def test_records_of_held_topics_wait_until_these_are_no_longer_held_and_others_pass_them() -> None:
    records = opened()
    records.pause(frozenset("a"))
    records.put([fetched(5, topic) for topic in "abab"])
    assert topics(await records.take()) == ["b", "b"]
    taking = asyncio.create_task(records.take())
    await asyncio.sleep(0)
    assert not taking.done()
    records.pause(frozenset())
    assert topics(await taking) == ["a", "a"]


async def test_what_waits_at_the_end_and_what_was_given_back_is_left_to_the_next_reader() -> None:
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


async def test_topics_are_full_while_so_many_bytes_wait_and_only_those_of_what_waits() -> None:
    told: list[frozenset[str]] = []
    records = LargeRecords(lambda: told.append(records.full))
    records.put([fetched(1, "a"), *[fetched(MIB, "b")] * 63])
    assert not records.full
    records.put([fetched(MIB, "b")])
    assert records.full == {"a", "b"}
    records.pause(frozenset("b"))
    assert topics(await records.take()) == ["a"]
    assert records.full == {"b"}
    records.pause(frozenset())
    await records.take()
    assert not records.full
    assert told == [{"a", "b"}, {"b"}, set()]
