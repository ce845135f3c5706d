"""Read off the bytes of an EmbedRequest what it would cost to parse, before anything is made of it.

A message of 4 MiB can hold 2 million inputs or 4 million token ids: parsed, that is a hundred megabytes. The walk
over its fields ends at the first bound that it passes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

from aggregator.errors import InvalidRequest
from protos.embedding.v1 import embedding_pb2 as pb

SMALL_BYTES = 32 * 1024
"""So few bytes are parsed in less time than they are walked over, and hold little whatever they say."""
MAX_TOKEN_IDS = 1 << 20
"""Of one request; they are held as 4 bytes each."""

_FIELDS_PER_INPUT = 4  # one has two: what it is, and its number of tokens
_OTHER_FIELDS = 64  # a request has 11 besides its inputs
_HEAD_FIELDS = 2048
_INPUTS = pb.EmbedRequest.INPUTS_FIELD_NUMBER
_TOKEN_IDS = pb.Input.TOKEN_IDS_FIELD_NUMBER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def check(data: bytes, max_inputs: int) -> None:
    """Raises InvalidRequest for a message that holds too much, DecodeError for one that cannot be walked over.

    What this lets pass can still be found undecodable.
    """
    if len(data) <= SMALL_BYTES:
        return
    inputs = token_ids = fields = 0
    max_fields = _FIELDS_PER_INPUT * max_inputs + _OTHER_FIELDS
    for number, wire_type, start, end in _fields(data, 0, len(data)):
        fields += 1
        if number == _INPUTS and wire_type == _BYTES:
            inputs += 1
            if inputs > max_inputs:
                raise InvalidRequest(f"more than {max_inputs} inputs: at most {max_inputs} are taken")
            for part, part_type, part_start, part_end in _fields(data, start, end):
                fields += 1
                if part == _TOKEN_IDS and part_type == _BYTES:
                    token_ids += _token_ids(data, part_start, part_end)
                if token_ids > MAX_TOKEN_IDS:
                    raise InvalidRequest(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request")
                if fields > max_fields:
                    break
        if fields > max_fields:
            raise InvalidRequest("the message repeats fields without end")


def head(data: bytes) -> pb.EmbedRequest:
    """What a message says besides its inputs, its id as a rule, as far as that can be read with little effort."""
    told: list[bytes] = []
    begins = 0
    try:
        for walked, (number, _, _, ends) in enumerate(_fields(data, 0, len(data))):
            if number != _INPUTS:
                told.append(data[begins:ends])
            begins = ends
            if walked == _HEAD_FIELDS:
                break
    except DecodeError:
        pass  # what came before it is told
    try:
        return pb.EmbedRequest.FromString(b"".join(told))
    except DecodeError:
        return pb.EmbedRequest()


def _token_ids(data: bytes, start: int, end: int) -> int:
    """How many a TokenIds holds if they are packed, as they should be; twice as many if not.

    Each id has one last byte, and so have the tag and the length of the packed list.
    """
    last_bytes = np.count_nonzero(np.frombuffer(data, np.uint8, end - start, start) < 0x80)  # noqa: PLR2004
    return max(0, int(last_bytes) - 2)


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and where the content begins and ends, of each field in `data[position:end]`."""
    while position < end:
        tag, position = _varint(data, position, end)
        wire_type = tag & 7
        start = position
        if wire_type == _BYTES:
            size, start = _varint(data, position, end)
            position = start + size
        elif wire_type == _VARINT:
            _, position = _varint(data, position, end)
        elif wire_type == _FIXED64:
            position += 8
        elif wire_type == _FIXED32:
            position += 4
        else:
            raise DecodeError("a group, or no wire type at all")
        if position > end:
            raise DecodeError("a field is longer than what holds it")
        yield tag >> 3, wire_type, start, position


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The number at `position`, and where it ends."""
    value = 0
    for index in range(position, min(end, position + _LONGEST_VARINT)):
        byte = data[index]
        value |= (byte & 0x7F) << (7 * (index - position))
        if byte < 0x80:  # noqa: PLR2004 - the last of its bytes
            return value, index + 1
    raise DecodeError("a number has no end")
