"""Walk over the fields of a message in protobuf without parsing it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

MAX_INT32 = 2**31 - 1
"""Token ids and numbers of tokens are int32 in a batch."""
_VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""
_LONGEST_VARINT = 10  # 64 bits, seven in a byte
ONE_BYTE = 0x80
"""A number below it is one byte long."""


def count_token_ids(data: bytes, start: int, end: int) -> int:
    """How many ids a TokenIds holds if they are packed, as usual; twice as many if not.

    Each id has one last byte, and so have the tag and the length of the packed list.
    """
    last_bytes = np.count_nonzero(np.frombuffer(data, np.uint8, end - start, start) < 0x80)  # noqa: PLR2004
    return max(0, int(last_bytes) - 2)


def fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and where the content begins and ends, of each field in `data[position:end]`."""
    while position < end:
        tag, position = (data[position], position + 1) if data[position] < ONE_BYTE else _varint(data, position, end)
        wire_type = tag & 7
        start = position
        if wire_type == BYTES:
            if position < end and data[position] < ONE_BYTE:  # most are short, and a call costs more than the rest
                size, start = data[position], position + 1
            else:
                size, start = _varint(data, position, end)
            position = start + size
        elif wire_type == _VARINT:
            _, position = _varint(data, position, end)
        elif wire_type == _FIXED64:
            position += 8
        elif wire_type == _FIXED32:
            position += 4
        else:
            raise DecodeError(f"field {tag >> 3} has wire type {wire_type}: a group, or unknown")
        if position > end:
            raise DecodeError(f"field {tag >> 3} is longer than its message")
        yield tag >> 3, wire_type, start, position


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(position, min(end, position + _LONGEST_VARINT)):
        byte = data[index]
        value |= (byte & 0x7F) << (7 * (index - position))
        if byte < ONE_BYTE:  # the last of its bytes
            return value, index + 1
    raise DecodeError("a number has no end")
