"""Large records wait apart from the small ones, in order and bounded, and are all read before the end."""

from __future__ import annotations

import asyncio

from aggregator.large_records import Fetched, LargeRecords, size_bytes
from tests.fakes.records import lease_of

MIB = 1024 * 1024


def fetched(size: int, offset: int = 0) -> Fetched:
    return Fetched(lease_of(b"x" * size, offset=offset), 0.0, 0.0)


async def test_records_are_taken_in_their_order_a_few_small_ones_at_a_time_or_one_that_is_larger() -> None:
    records = LargeRecords()
    sizes = [100_000, 100_000, 100_000, 3 * MIB, 1]
    records.put([fetched(size) for size in sizes[:4]])
    records.put([fetched(sizes[4])])
    records.close()
    taken: list[list[int]] = []
    while batch := await records.take():
        taken.append([size_bytes(each.lease) for each in batch])
    assert taken == [[100_000, 100_000], [100_000], [3 * MIB], [1]]
    assert not await records.take()


async def test_who_takes_waits_for_the_next_and_for_the_end() -> None:
    records = LargeRecords()
    taking = asyncio.create_task(records.take())
    await asyncio.sleep(0)
    assert not taking.done()
    records.put([fetched(5)])
    assert len(await taking) == 1
    taking = asyncio.create_task(records.take())
    await asyncio.sleep(0)
    records.close()
    assert not await taking


async def test_there_is_room_until_so_many_bytes_wait() -> None:
    records = LargeRecords()
    value = b"x" * MIB
    records.put([Fetched(lease_of(value), 0.0, 0.0)] * 63)
    await records.room()
    records.put([Fetched(lease_of(value), 0.0, 0.0)])
    waiting = asyncio.create_task(records.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await records.take()
    await waiting
