"""A record that nobody can decode costs itself alone, a corrupt batch becomes one record with its bytes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition, codec
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from aggregator.sources.kafka.faults import Decoded
from aggregator.wings.undecodable import batches
from aggregator.wings.undecodable.batches import decode_batch

TP = TopicPartition("topic", 2)


def batch(base: int, records: int, *, compression: int = 0, producer_id: int = -1, name: str = "name") -> bytes:
    transactional = producer_id >= 0
    builder = DefaultRecordBatchBuilder(2, compression, transactional, producer_id, 0, 0, 1_000_000)
    for delta in range(records):
        key, value = (b"k", b"value %d" % delta) if delta % 2 else (None, None)
        builder.append(delta, 1000 + delta, key, value, [(name, b"content"), ("none", None)])
    return with_checksum(base.to_bytes(8, "big") + bytes(builder.build())[8:])


def with_checksum(data: bytes) -> bytes:
    checksum: int = calc_crc32c(data[21:])
    return data[:17] + checksum.to_bytes(4, "big") + data[21:]


def control(base: int, producer_id: int) -> bytes:
    """The marker that ends a transaction."""
    marker = bytearray(batch(base, 1, producer_id=producer_id))
    marker[22] |= 0x20
    return with_checksum(bytes(marker))


def spoilt(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0x40])


def found(data: bytes, offset: int, **changes: Any) -> Decoded:
    settings: dict[str, Any] = {"log_end": 1000, "max_records": 500, **changes}
    decoded = decode_batch(data, TP, offset, **settings)
    assert decoded is not None
    return decoded


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_records_are_read_as_aiokafka_reads_them(compression: int) -> None:
    data = batch(10, 6, compression=compression)
    theirs = [
        (each.offset, each.timestamp, each.key, each.value, [(name, content or b"") for name, content in each.headers])
        for each in DefaultRecordBatch(data)
    ]
    ours = found(data + b"more", 10)
    assert [(each.offset, each.timestamp, each.key, each.value, list(each.headers)) for each in ours.records] == theirs
    assert not any(each.unreadable for each in ours.records)
    assert (ours.after, ours.lost) == (16, 0)
    assert [each.offset for each in found(data, 14).records] == [14, 15]


def test_a_header_name_not_in_utf8_makes_only_its_own_record_unreadable() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 100_000)
    for delta in range(3):
        builder.append(delta, 1, b"k", b"%d" % delta, [("NAME" if delta == 1 else "fine", b"x")])
    data = with_checksum(bytes(builder.build()).replace(b"NAME", b"N\xffME"))
    decoded = found(data, 0)
    assert [(each.value, each.unreadable) for each in decoded.records] == [
        (b"0", ""),
        (b"1", "a header name is not UTF-8"),
        (b"2", ""),
    ]
    assert decoded.records[1].headers == [("N\ufffdME", b"x")]
    assert (decoded.after, decoded.lost) == (3, 0)


def test_batches_are_read_up_to_the_first_with_an_unreadable_record() -> None:
    odd = with_checksum(batch(14, 2).replace(b"name", b"n\xffme"))
    decoded = found(batch(10, 4) + odd + batch(16, 4), 10)
    assert [each.offset for each in decoded.records] == [10, 11, 12, 13, 14, 15]
    assert decoded.after == 16


def test_a_corrupt_batch_is_one_record_ending_where_the_next_batch_says() -> None:
    bad = spoilt(batch(10, 5))
    decoded = found(bad + batch(20, 5), 12)
    (record,) = decoded.records
    assert (record.offset, record.key, record.value, record.timestamp) == (12, None, bad, -1)
    assert record.unreadable == "offsets 12 to 19 cannot be decoded: ValueError('the checksum is wrong')"
    assert (decoded.after, decoded.lost) == (20, 8)


def test_the_last_batch_s_own_header_is_believed_as_far_as_the_log_goes() -> None:
    bad = spoilt(batch(10, 5))
    assert found(bad, 12, log_end=15).after == 15
    assert decode_batch(bad, TP, 12, log_end=14, max_records=500) is None
    assert decode_batch(bad, TP, 15, log_end=1000, max_records=500) is None


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
    decoded = found(batch(10, 2, producer_id=7), 10, aborted=aborted)
    assert [each.offset for each in decoded.records] == ([10, 11] if committed else [])
    assert decoded.after == 12


def test_a_marker_ends_an_aborted_transaction_and_the_next_one_is_read() -> None:
    data = batch(10, 2, producer_id=7) + control(12, 7) + batch(13, 2, producer_id=7) + control(15, 7)
    decoded = found(data, 10, aborted=[(7, 10)])
    assert [each.offset for each in decoded.records] == [13, 14]
    assert decoded.after == 16


def test_a_batch_whose_last_records_were_compacted_is_left_behind_whole() -> None:
    data = bytearray(batch(10, 3))
    data[23:27] = (7).to_bytes(4, "big")  # the last offset's distance, which compaction keeps
    decoded = found(with_checksum(bytes(data)), 14)
    assert (list(decoded.records), decoded.after) == ([], 18)


def test_a_batch_in_an_old_format_is_read_too() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 1000)
    for offset in range(3):
        builder.append(offset, timestamp=5, key=b"k", value=b"%d" % offset)
    data = bytes(builder.build())
    decoded = found(data, 0)
    assert [(each.offset, each.timestamp, each.value) for each in decoded.records] == [
        (offset, 5, b"%d" % offset) for offset in range(3)
    ]
    assert found(spoilt(data), 0).after == 2
    assert decode_batch(spoilt(data)[-len(data) // 3 :], TP, 2, log_end=9, max_records=500) is None


@pytest.mark.parametrize("compression", [0, 1])
def test_a_batch_of_many_records_is_read_a_few_at_a_time(compression: int) -> None:
    data = batch(10, 7, compression=compression) + batch(17, 3)
    offset, read = 10, []
    while offset < 20:
        decoded = found(data, offset, max_records=3)
        assert len(decoded.records) <= 3
        read.append([each.offset for each in decoded.records])
        assert decoded.after == read[-1][-1] + 1
        offset = decoded.after
    assert read == [[10, 11, 12], [13, 14, 15], [16, 17, 18], [19]]


def test_a_batch_in_an_old_format_is_read_a_few_at_a_time() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 1000)
    for offset in range(5):
        builder.append(offset, timestamp=5, key=b"k", value=b"%d" % offset)
    data = bytes(builder.build())
    for start, offsets in ((0, [0, 1]), (2, [2, 3]), (4, [4])):
        decoded = found(data, start, max_records=2)
        assert [each.offset for each in decoded.records] == offsets
        assert decoded.after == offsets[-1] + 1


def test_a_record_left_out_that_reaches_past_its_batch_makes_it_corrupt() -> None:
    data = batch(10, 1)
    head, length = data[:61], data[61:62]
    longer = with_checksum(head + bytes([length[0] + 2]) + data[62:])  # by one byte: the length is zigzag
    decoded = found(longer + batch(20, 1), 12)
    assert (decoded.after, decoded.lost) == (20, 8)
    assert "a record reaches past the batch" in decoded.records[0].unreadable


class FakeBroker:
    """A consumer's client whose partition has this log."""

    def __init__(self, log: bytes) -> None:
        self._client = self.cluster = self
        self._log = log

    def leader_for_partition(self, tp: TopicPartition) -> int:
        assert tp == TP
        return 0

    async def send(self, node: int, request: object) -> Any:
        del node, request
        return SimpleNamespace(topics=[(TP.topic, [(TP.partition, 0, 1000, 1000, 0, [], self._log)])], API_VERSION=4)


async def test_a_log_is_read_by_hand_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def decoder(payload: bytes) -> bytes:
        threads.append(threading.current_thread().name)
        return bytes(codec.gzip_decode(payload))

    monkeypatch.setattr(batches, "_DECODERS", {1: decoder})
    decoded = await batches.read_by_hand(FakeBroker(batch(10, 9, compression=1)), TP, 12, 4)
    assert decoded is not None
    assert ([each.offset for each in decoded.records], decoded.after) == ([12, 13, 14, 15], 16)
    assert [name.startswith("slow-lane") for name in threads] == [True]
