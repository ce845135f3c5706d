"""Bounds of a body's JSON before it is decoded, which makes an object of each part and lets no other thread run."""

from __future__ import annotations

from collections.abc import Iterator

from aggregator.sources.http.errors import FieldError
from aggregator.sources.wire.decode import SMALL_BYTES

MOST_ELEMENTS = 1 << 16
"""Elements of lists and objects that a decoder without a schema makes in 5 ms."""
_MOST_NESTED = 16_384
"""Lists and objects: 2,048 documents of three each are 6,144, 1,024 messages of four parts 6,145."""
_PIECE_BYTES = 64 * 1024
"""Other threads run between two pieces, which take a millisecond at most."""


def check_nested(data: bytes) -> None:
    """Raises FieldError for more lists and objects than any form has."""
    if holds_more(data, b"[{", _MOST_NESTED):
        raise FieldError("the body has too many texts, lists and objects: send fewer inputs in one request")


def holds_more(data: bytes, marks: bytes, most: int) -> bool:
    """Whether JSON has more than `most` of these characters outside its texts; a small body has not."""
    if len(data) <= SMALL_BYTES or sum(map(data.count, marks)) <= most:
        return False
    found = 0
    for part in _outside_texts(data):
        found += sum(map(part.count, marks))
        if found > most:
            return True
    return False


def _outside_texts(data: bytes) -> Iterator[bytes]:
    """The rest of JSON when its texts are left out, piece by piece."""
    start, in_text = 0, False
    while start < len(data):
        piece = data[start : start + _PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # no escape is cut in two
            piece = data[start : start + _PIECE_BYTES + 1]
        start += len(piece)
        parts = piece.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        yield b"".join(parts[in_text::2])
        in_text ^= len(parts) % 2 == 0
