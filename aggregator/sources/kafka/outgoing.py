"""Records to write, spread over partitions by key as Kafka's Java client does, in shares that fit a batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from aiokafka.partitioner import murmur2

from aggregator.sources.kafka.offsets import Header

BATCH_BYTES = 256 * 1024  # well below the 1 MB that a broker takes by default
_RECORD_OVERHEAD_BYTES = 100  # lengths, offset, timestamp and headers' names

_SEED = 0x9747B28C  # of Kafka's murmur2, as in its Java client
_M = np.uint32(0x5BD1E995)
_SIGN_OFF = np.uint32(0x7FFFFFFF)
_FEW = 6  # keys of one length: for fewer of 36 bytes, the loop in Python is faster


@dataclass(slots=True, eq=False)  # one per record: a frozen one costs four times as much to make
class OutgoingRecord:
    """A reply, a delta or a dead letter to produce.

    `timestamp_ms`: of the record that it follows; negative: unknown. `identity`: its key where a topic requires one and
    it has none; empty: it has one, or none can be made.
    """

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp_ms: int = -1
    identity: bytes = b""


DeliveryResult = Exception | None
"""The result for one record: None if the broker acknowledged it, else why it never will."""

Delivered = Sequence[tuple[int, DeliveryResult]]
"""The position and the delivery result of some of the records sent."""


def spread(
    positions: Sequence[int], records: Sequence[OutgoingRecord], partitions: set[int]
) -> Iterator[tuple[int, Sequence[int]]]:
    """The partition of each record: the one it names, else that of its key, else a random one for all others.

    A partition has several shares if its records do not fit one batch.
    """
    spread: dict[int, list[int]] = {}
    keyed: list[int] = []
    keys: list[bytes] = []
    at_random = random.choice(tuple(partitions))  # noqa: S311 - any will do
    for position in positions:
        record = records[position]
        if record.partition is not None:
            spread.setdefault(record.partition, []).append(position)
        elif record.key is not None:
            keyed.append(position)
            keys.append(record.key)
        else:
            spread.setdefault(at_random, []).append(position)
    for position, partition in zip(keyed, partitions_by_key(keys, len(partitions)), strict=True):
        spread.setdefault(partition, []).append(position)
    for partition, share in spread.items():
        if size_bytes([records[position] for position in share]) <= BATCH_BYTES:
            yield partition, share
            continue
        start = total_bytes = 0
        for index, position in enumerate(share):
            record_bytes = size_bytes([records[position]])
            if index > start and total_bytes + record_bytes > BATCH_BYTES:
                yield partition, share[start:index]
                start, total_bytes = index, 0
            total_bytes += record_bytes
        yield partition, share[start:]


def size_bytes(records: Sequence[OutgoingRecord]) -> int:
    keys_and_values = [len(record.value or b"") + len(record.key or b"") for record in records]
    return sum(keys_and_values) + _RECORD_OVERHEAD_BYTES * len(records)


def partitions_by_key(keys: Sequence[bytes], partition_count: int) -> list[int]:
    """The partition of each key: murmur2, sign dropped, modulo `partition_count`.

    Keys of one length are hashed together: 256 keys of 36 bytes cost 0.2 µs each, a loop in Python 3.7.
    """
    by_length: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        by_length.setdefault(len(key), []).append(position)
    chosen = [0] * len(keys)
    for length, positions in by_length.items():
        if len(positions) < _FEW:
            for position in positions:
                chosen[position] = (murmur2(keys[position]) & 0x7FFFFFFF) % partition_count
            continue
        hashes = _murmur2([keys[position] for position in positions], length)
        partitions: list[int] = ((hashes & _SIGN_OFF) % np.uint32(partition_count)).tolist()
        for position, partition in zip(positions, partitions, strict=True):
            chosen[position] = partition
    return chosen


def _murmur2(keys: Sequence[bytes], length: int) -> npt.NDArray[np.uint32]:
    octets = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), length)
    whole = length & ~3
    words = np.ascontiguousarray(octets[:, :whole]).view("<u4")
    hashes = np.full(len(keys), _SEED ^ length, np.uint32)
    for column in range(whole // 4):
        word = words[:, column] * _M
        word ^= word >> np.uint32(24)
        word *= _M
        hashes *= _M
        hashes ^= word
    if length > whole:
        for place in range(length - whole):
            hashes ^= octets[:, whole + place].astype(np.uint32) << np.uint32(8 * place)
        hashes *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes
