"""Find the way past a record batch that cannot be read, from the headers that stand around it."""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">qiibIhi")  # base offset, length, leader epoch, magic, crc, attributes, last offset delta
_UNCOUNTED_BYTES = 12  # the length does not count the base offset and itself
_MAGIC = 2


def offset_after_batch(data: bytes, offset: int, log_end: int) -> int | None:
    """Where to read on after the batch at the start of `data`, which holds `offset`; None if that cannot be told.

    The next batch's own base offset where there is one, as the header of a corrupt batch may itself be corrupt;
    else the last offset that the header claims, if that lies within the log.
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
