"""Keys go to the partitions that Kafka's Java client chooses."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from aggregator.sources.kafka.partitioner import partitions_by_key


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
