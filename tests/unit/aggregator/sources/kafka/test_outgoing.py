"""Each record goes to one partition, by Kafka's own hash of its key, in shares that fit a batch."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from aggregator.sources.kafka.outgoing import BATCH_BYTES, OutgoingRecord, partitions_by_key, spread


@pytest.mark.parametrize(
    ("key", "signed_hash"),  # from org.apache.kafka.common.utils.UtilsTest
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
@pytest.mark.parametrize("copies", [1, 50])
def test_the_hash_is_kafka_s(key: bytes, signed_hash: int, copies: int) -> None:
    assert partitions_by_key([key] * copies, 2**31 - 1) == [(signed_hash & 0x7FFFFFFF) % (2**31 - 1)] * copies


@given(st.lists(st.binary(max_size=12), max_size=60), st.integers(1, 100))
def test_many_keys_at_once_go_where_each_would_go(keys: list[bytes], partitions: int) -> None:
    assert partitions_by_key(keys, partitions) == [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]


def _record(partition: int | None, key: bytes | None, size_bytes: int = 10) -> OutgoingRecord:
    return OutgoingRecord("replies", partition, key, b"x" * size_bytes, ())


def test_a_record_goes_where_it_or_its_key_says_others_together_anywhere() -> None:
    records = [_record(2, b"k"), _record(None, b"k"), _record(None, None), _record(None, None), _record(2, None)]
    shares = dict(spread([4, 3, 2, 1, 0], records, {0, 1, 2, 3}))
    placed = {position: partition for partition, share in shares.items() for position in share}
    assert sorted(placed) == [0, 1, 2, 3, 4]
    assert placed[0] == placed[4] == 2
    assert placed[1] == partitions_by_key([b"k"], 4)[0]
    assert placed[2] == placed[3]


def test_what_does_not_fit_one_batch_goes_in_several_in_its_order() -> None:
    third = BATCH_BYTES // 3
    sizes = [third, third, third, 2 * BATCH_BYTES, 10, 10]
    records = [_record(0, None, size) for size in sizes]
    assert list(spread(range(6), records, {0})) == [(0, [0, 1]), (0, [2]), (0, [3]), (0, [4, 5])]
