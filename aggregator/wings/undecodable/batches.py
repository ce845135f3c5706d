"""Decode the record batches that aiokafka cannot.

aiokafka raises for a header name that is not UTF-8, a wrong checksum and an unknown compression, and drops all
records of the fetch with it. Decoded here, an undecodable record costs itself alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiokafka import TopicPartition, codec
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint

from aggregator.slow_lane import in_slow_lane
from aggregator.sources.kafka.faults import Decoded
from aggregator.sources.kafka.offsets import Header, RawRecord
from aggregator.wings.undecodable.raw_batches import AbortedTransaction, raw_batches

# base offset, length, leader epoch, magic, crc, attributes, last offset delta; then first and last timestamp,
# producer id and epoch, first sequence number, count
_HEAD = struct.Struct(">qiibIhi")
_WHOLE_HEAD = struct.Struct(">qiibIhiqqqhii")
_UNCOUNTED_BYTES = 12  # the length does not count the base offset and itself
_MAGIC = 2
_CODEC_BITS = 0x07
_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_DECODERS = {1: codec.gzip_decode, 2: codec.snappy_decode, 3: codec.lz4_decode, 4: codec.zstd_decode}


async def read_by_hand(client: Any, tp: TopicPartition, offset: int, max_records: int) -> Decoded | None:
    """Records from an offset on, which aiokafka cannot decode; None while the end of a corrupt batch is unknown.

    Raises KafkaError.
    """
    data, aborted, log_end = await raw_batches(client, tp, offset)
    if not data:
        return Decoded((), offset)
    decode = partial(decode_batch, aborted=aborted, log_end=log_end, max_records=max_records)
    return await in_slow_lane(partial(decode, data, tp, offset))  # a megabyte may hold half a million records


def decode_batch(
    data: bytes,
    tp: TopicPartition,
    offset: int,
    *,
    aborted: Sequence[AbortedTransaction] = (),
    log_end: int,
    max_records: int,
) -> Decoded | None:
    """Decode the batches at the start of `data`, which holds `offset`, up to the first one with an undecodable record.

    The last batch is read up to the record that makes `max_records`. `aborted` are the transactions that the broker
    listed with `data`. None: the end of a corrupt batch cannot be determined, or there is no whole batch.
    """
    records: list[RawRecord] = []
    open_aborted = list(aborted)
    after = offset
    while (batch := _first_batch(data)) and len(records) < max_records:
        try:
            found, following = _records(batch, tp, open_aborted, after, max_records - len(records))
        except Exception as error:  # noqa: BLE001 - aiokafka and each compression library raise different errors
            end = _offset_after(data, after, log_end)
            if end is None:
                break
            reason = f"offsets {after} to {end - 1} cannot be decoded: {error!r}"
            records.append(RawRecord(tp.topic, tp.partition, after, -1, None, batch, (), reason))
            return Decoded(records, end, end - after)
        records += found
        after, data = max(after, following), data[len(batch) :]
        if any(record.unreadable for record in found):
            break
    return Decoded(records, after) if after > offset else None


def _first_batch(data: bytes) -> bytes:
    if len(data) < _HEAD.size:
        return b""
    end = _UNCOUNTED_BYTES + max(0, _HEAD.unpack_from(data)[1])
    return data[:end] if _HEAD.size <= end <= len(data) else b""


def _records(
    batch: bytes, tp: TopicPartition, open_aborted: list[AbortedTransaction], start: int, most: int
) -> tuple[Sequence[RawRecord], int]:
    """At most `most` records of a batch from offset `start` on, none of an aborted transaction; and the next offset."""
    base, _, _, magic, _, attributes, last_delta = _HEAD.unpack_from(batch)
    if magic < _MAGIC:
        return _old_records(batch, tp, start, most)
    if not DefaultRecordBatch(batch).validate_crc():
        raise ValueError("the checksum is wrong")
    producer_id = _WHOLE_HEAD.unpack_from(batch)[9]
    began = [each for each in open_aborted if each[0] == producer_id and each[1] <= base]
    if attributes & _CONTROL_BIT:  # it ends the transaction
        open_aborted[:] = [each for each in open_aborted if each not in began]
        return (), base + last_delta + 1
    if attributes & _TRANSACTIONAL_BIT and began:
        return (), base + last_delta + 1
    return _parse(batch, tp, start, most)


def _old_records(batch: bytes, tp: TopicPartition, start: int, most: int) -> tuple[Sequence[RawRecord], int]:
    """The same of a batch in the format before Kafka 0.11, which has no headers."""
    read = MemoryRecords(batch).next_batch()
    if read is None or not read.validate_crc():
        raise ValueError("the checksum is wrong")
    records: list[RawRecord] = []
    after = start
    for each in read:
        if len(records) == most:
            break
        after = each.offset + 1
        if each.offset >= start:
            records.append(RawRecord(tp.topic, tp.partition, each.offset, each.timestamp or -1, each.key, each.value))
    return records, after


def _parse(batch: bytes, tp: TopicPartition, start: int, most: int) -> tuple[Sequence[RawRecord], int]:
    """The same of a batch whose checksum is right. Raises anything if it is corrupt nevertheless."""
    base, _, _, _, _, attributes, last_delta, first_ms, last_ms, _, _, _, count = _WHOLE_HEAD.unpack_from(batch)
    payload = batch[_WHOLE_HEAD.size :]
    compression = attributes & _CODEC_BITS
    cursor = _Cursor(bytes(_DECODERS[compression](payload)) if compression else payload)
    records: list[RawRecord] = []
    before = base - 1
    for _ in range(count):
        if len(records) == most:
            return records, before + 1
        end = cursor.end()
        cursor.number()  # attributes
        timestamp_ms = first_ms + cursor.number()
        offset = base + cursor.number()
        if not before < offset <= base + last_delta:
            raise ValueError("the offsets do not rise within the batch")
        before = offset
        if offset < start:
            cursor.skip_to(end)
            continue
        key, value = cursor.octets(), cursor.octets()
        names_and_values = [(cursor.octets() or b"", cursor.octets() or b"") for _ in range(cursor.number())]
        headers: list[Header] = [(name.decode(errors="replace"), content) for name, content in names_and_values]
        odd = any(name.decode(errors="ignore").encode() != name for name, _ in names_and_values)
        reason = "a header name is not UTF-8" if odd else ""
        when_ms = last_ms if attributes & _APPEND_TIME_BIT else timestamp_ms
        records.append(RawRecord(tp.topic, tp.partition, offset, when_ms, key, value, headers, reason))
    return records, base + last_delta + 1


def _offset_after(data: bytes, offset: int, log_end: int) -> int | None:
    """The offset after the corrupt batch at the start of `data`, which holds `offset`; None if it is unknown.

    The next batch's base offset, if there is one, as the corrupt batch's own header may be wrong; else the last offset
    of that header, if it is within the log.
    """
    base, length, _, magic, _, _, last_delta = _HEAD.unpack_from(data)
    following = _UNCOUNTED_BYTES + length
    if length > 0 and len(data) >= following + _HEAD.size:
        next_base, _, _, next_magic, *_ = _HEAD.unpack_from(data, following)
        if next_magic == _MAGIC and offset < next_base <= log_end:
            return int(next_base)
    last = base + last_delta
    if magic == _MAGIC and base <= offset <= last < log_end:
        return int(last + 1)
    return None


class _Cursor:
    """Reads the numbers and strings of a batch one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = bytearray(data)
        self._at = 0

    def number(self) -> int:
        number, self._at = decode_varint(self._data, self._at)
        return int(number)

    def end(self) -> int:
        """The place behind a record that begins here, whose length comes first."""
        length = self.number()
        return self._at + length

    def skip_to(self, place: int) -> None:
        """Raises IndexError for a place that is not ahead, within the batch."""
        if not self._at <= place <= len(self._data):
            raise IndexError("a record reaches past the batch")
        self._at = place

    def octets(self) -> bytes | None:
        length = self.number()
        if length < 0:
            return None
        self._at += length
        if self._at > len(self._data):
            raise IndexError("a string reaches past the batch")
        return bytes(self._data[self._at - length : self._at])
