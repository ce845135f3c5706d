"""What aiokafka cannot read: after a corrupt batch reading goes on at the next, and odd header names cost nothing."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from aggregator.sources.kafka.consumer.corrupt import offset_after_batch, rescue_records


def batch(base: int, records: int, *, compression: int = 0, producer_id: int = -1) -> bytes:
    transactional = producer_id >= 0
    builder = DefaultRecordBatchBuilder(2, compression, transactional, producer_id, 0, 0, 1_000_000)
    for delta in range(records):
        key, value = (b"k", b"value %d" % delta) if delta % 2 else (None, None)
        builder.append(delta, 1000 + delta, key, value, [("name", b"content"), ("none", None)])
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


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_records_are_read_as_aiokafka_reads_them(compression: int) -> None:
    data = batch(10, 6, compression=compression)
    theirs = [
        (each.offset, each.timestamp, each.key, each.value, [(name, content or b"") for name, content in each.headers])
        for each in DefaultRecordBatch(data)
    ]
    ours, after = rescue_records(data + b"more", "topic", 2, 0)
    assert [(each.offset, each.timestamp, each.key, each.value, list(each.headers)) for each in ours] == theirs
    assert [each.offset for each in rescue_records(data, "topic", 2, 14)[0]] == [14, 15]
    assert after == 16


def test_a_header_name_that_is_not_utf8_gets_odd_letters() -> None:
    data = batch(10, 2).replace(b"name", b"n\xff\xfee")
    with pytest.raises(UnicodeDecodeError):
        list(DefaultRecordBatch(data))
    assert rescue_records(data, "topic", 2, 11)[0][0].headers[0] == ("n\ufffd\ufffde", b"content")


@pytest.mark.parametrize(
    ("aborted", "committed"),
    [
        ([], True),
        ([(7, 10)], False),
        ([(7, 3)], False),
        ([(7, 12)], True),  # its producer's next
        ([(8, 3)], True),  # another's
        ([(8, 3), (7, 4)], False),
    ],
)
def test_records_of_a_transaction_are_read_unless_it_was_aborted(
    aborted: list[tuple[int, int]], *, committed: bool
) -> None:
    records, after = rescue_records(batch(10, 2, producer_id=7), "topic", 2, 10, aborted)
    assert [each.offset for each in records] == ([10, 11] if committed else [])
    assert after == 12


def test_a_batch_whose_last_records_were_compacted_away_is_left_behind_whole() -> None:
    data = bytearray(batch(10, 3))
    data[23:27] = (7).to_bytes(4, "big")  # the last offset's distance, which compaction keeps
    assert rescue_records(bytes(data), "topic", 2, 14) == ([], 18)


def test_a_batch_that_ends_before_the_offset_is_not_read() -> None:
    with pytest.raises(ValueError, match="ends before"):
        rescue_records(batch(10, 2), "topic", 2, 12)


@given(st.binary(max_size=200), st.integers(0, 120))
def test_any_bytes_are_records_or_a_value_error(data: bytes, at: int) -> None:
    good = batch(10, 4)
    for bytes_ in (data, good[:at] + data + good[at:], good[:61] + data):
        try:
            records, after = rescue_records(bytes_, "topic", 2, 10)
        except ValueError:
            continue
        assert all(record.offset >= 10 for record in records)
        assert after > 10
