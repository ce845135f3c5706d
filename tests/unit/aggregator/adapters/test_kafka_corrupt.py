"""After a corrupt batch reading goes on at the next batch: no good record is skipped."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from aggregator.adapters.kafka_corrupt import offset_after_batch


def batch(base: int, records: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, 0, 1_000_000)
    for delta in range(records):
        builder.append(delta, 0, b"k", b"value", [])
    built = bytearray(builder.build())
    built[:8] = base.to_bytes(8, "big")
    return bytes(built)


def test_the_next_batch_says_where_to_go_on() -> None:
    data = batch(10, 5) + batch(20, 5)
    assert offset_after_batch(data, 10, 100) == 20
    assert offset_after_batch(data, 14, 100) == 20


def test_the_last_batch_s_own_header_is_believed_as_far_as_the_log_goes() -> None:
    assert offset_after_batch(batch(10, 5), 12, 15) == 15
    assert offset_after_batch(batch(10, 5), 12, 14) is None
    assert offset_after_batch(batch(10, 5), 15, 100) is None


@pytest.mark.parametrize("data", [b"", b"\0" * 26, b"\0" * 61, b"\xff" * 100])
def test_where_nothing_can_be_told_nothing_is_told(data: bytes) -> None:
    assert offset_after_batch(data, 3, 100) is None


@given(st.binary(max_size=200), st.integers(0, 2**40), st.integers(0, 2**40))
def test_any_bytes_lead_forward_within_the_log_or_nowhere(data: bytes, offset: int, log_end: int) -> None:
    after = offset_after_batch(data, offset, log_end)
    assert after is None or offset < after <= log_end
