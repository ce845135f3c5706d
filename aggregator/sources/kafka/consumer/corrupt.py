"""Parse what aiokafka cannot: the end of a corrupt record batch, and records with header names that are not UTF-8."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import codec
from aiokafka.record.util import decode_varint

from aggregator.sources.kafka.records import Header

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


AbortedTransaction = tuple[int, int]
"""The id of its producer, and its first offset."""


@dataclass(slots=True)
class RescuedRecord:
    """A Record that aiokafka cannot read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


def offset_after_batch(data: bytes, offset: int, log_end: int) -> int | None:
    """The offset after the batch at the start of `data`, which holds `offset`; None if it cannot be determined.

    The base offset of the next batch, if there is one, as the header of a corrupt batch may be corrupt itself; else
    by the last offset in the header, if that is within the log.
    """
    if len(data) < _HEAD.size:
        return None
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


def rescue_records(
    data: bytes, topic: str, partition: int, offset: int, aborted: Sequence[AbortedTransaction] = ()
) -> tuple[list[RescuedRecord], int]:
    """The records from `offset` on of the batch at the start of `data`, and the offset after the batch.

    Header names that are not UTF-8 get replacement characters. `aborted` are the transactions that the broker listed
    with `data`; the batch belongs to one of them if its producer began that before the batch, as transactions that
    ended before `offset` are not listed. An aborted batch has no records. Raises ValueError for a corrupt batch.
    """
    try:
        base, length, _, _, _, attributes, last_delta, first_ms, last_ms, producer_id, _, _, count = (
            _WHOLE_HEAD.unpack_from(data)
        )
        after = base + last_delta + 1
        if after <= offset:
            raise ValueError("the batch ends before the offset")
        if attributes & _CONTROL_BIT or (
            attributes & _TRANSACTIONAL_BIT and any(who == producer_id and first <= base for who, first in aborted)
        ):
            return [], after
        payload = data[_WHOLE_HEAD.size : _UNCOUNTED_BYTES + length]
        cursor = _Cursor(_unpacked(payload, attributes & _CODEC_BITS))
        records: list[RescuedRecord] = []
        for _ in range(count):
            cursor.number()  # length
            cursor.number()  # attributes
            timestamp_ms = first_ms + cursor.number()
            at = base + cursor.number()
            key, value = cursor.octets(), cursor.octets()
            headers = tuple(
                ((cursor.octets() or b"").decode(errors="replace"), cursor.octets() or b"")
                for _ in range(cursor.number())
            )
            when_ms = last_ms if attributes & _APPEND_TIME_BIT else timestamp_ms
            records.append(RescuedRecord(topic, partition, at, when_ms, key, value, headers))
    except (struct.error, IndexError) as error:
        raise ValueError("the batch is corrupt") from error
    return [record for record in records if record.offset >= offset], after


def _unpacked(payload: bytes, compression: int) -> bytes:
    if not compression:
        return payload
    try:
        return bytes(_DECODERS[compression](payload))
    except Exception as error:  # each library has errors of its own
        raise ValueError("the batch cannot be decompressed") from error


class _Cursor:
    """Reads the numbers and strings of a batch one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = bytearray(data)
        self._at = 0

    def number(self) -> int:
        """A variable-length number."""
        number, self._at = decode_varint(self._data, self._at)
        return int(number)

    def octets(self) -> bytes | None:
        """A string, or none."""
        length = self.number()
        if length < 0:
            return None
        self._at += length
        if self._at > len(self._data):
            raise IndexError("a string reaches past the batch")
        return bytes(self._data[self._at - length : self._at])
