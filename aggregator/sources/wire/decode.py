"""Decode an EmbedRequest in protobuf or JSON, and make a Request of it.

Its bytes are checked for what it would cost to parse. A message of 4 MiB can hold 2 million inputs or 4 million token
ids: parsed, that is a hundred megabytes. The walk over its fields ends at the first bound that it passes.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import inf

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from aggregator.errors import Code, InvalidRequest, Undecodable
from aggregator.request.request import Defaults, Failure, Options, Outcome, Request
from aggregator.scheduler.work_item import Priority
from protos.embedding.v1 import embedding_pb2 as pb

SMALL_BYTES = 32 * 1024
"""Fewer bytes are parsed faster than they are checked, and cannot hold much."""
MAX_TOKEN_IDS = 1 << 20
"""Of one request; they are held as 4 bytes each."""

_FIELDS_PER_INPUT = 4  # one has two: its content, and its number of tokens
_OTHER_FIELDS = 64  # a request has 12 besides its inputs
_HEAD_FIELDS = 2048
_INPUTS = pb.EmbedRequest.INPUTS_FIELD_NUMBER
_TEXT_TAG = pb.Input.TEXT_FIELD_NUMBER << 3 | 2
_TOKEN_IDS = pb.Input.TOKEN_IDS_FIELD_NUMBER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_ONE_BYTE = 0x80
"""A number below it is one byte long."""


def check(data: bytes, max_inputs: int) -> None:
    """Raises InvalidRequest for a message above a limit, DecodeError for one whose fields cannot be read.

    A message that passes may still be undecodable.
    """
    if len(data) <= SMALL_BYTES:
        return
    inputs = token_ids = walked = 0
    max_fields = _FIELDS_PER_INPUT * max_inputs + _OTHER_FIELDS
    for number, wire_type, start, end in fields(data, 0, len(data)):
        walked += 1
        if number == _INPUTS and wire_type == _BYTES:
            inputs += 1
            if inputs > max_inputs:
                raise InvalidRequest(f"more than {max_inputs} inputs: at most {max_inputs} are taken")
            parts = () if _is_one_text(data, start, end) else fields(data, start, end)
            for part, part_type, part_start, part_end in parts:
                walked += 1
                if part == _TOKEN_IDS and part_type == _BYTES:
                    token_ids += count_token_ids(data, part_start, part_end)
                if token_ids > MAX_TOKEN_IDS:
                    raise InvalidRequest(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request")
                if walked > max_fields:
                    break
        if walked > max_fields:
            raise InvalidRequest("the message repeats fields too often")


def _is_one_text(data: bytes, start: int, end: int) -> bool:
    """Whether an Input is a text of less than 16 kB and nothing else, as most are."""
    size = end - start - 2
    if size < 0 or data[start] != _TEXT_TAG:
        return False
    first = data[start + 1]
    if first < _ONE_BYTE:
        return first == size
    return size > 0 and data[start + 2] < _ONE_BYTE and first - _ONE_BYTE + (data[start + 2] << 7) == size - 1


def head(data: bytes) -> pb.EmbedRequest:
    """The message without its inputs, as far as it can be read with little effort: usually its id."""
    told: list[bytes] = []
    begins = 0
    try:
        for walked, (number, _, _, ends) in enumerate(fields(data, 0, len(data))):
            if number != _INPUTS:
                told.append(data[begins:ends])
            begins = ends
            if walked == _HEAD_FIELDS:
                break
    except DecodeError:
        pass  # the fields before it are kept
    try:
        return pb.EmbedRequest.FromString(b"".join(told))
    except DecodeError:
        return pb.EmbedRequest()


def count_token_ids(data: bytes, start: int, end: int) -> int:
    """How many ids a TokenIds holds if they are packed, as usual; twice as many if not.

    Each id has one last byte, and so have the tag and the length of the packed list.
    """
    last_bytes = np.count_nonzero(np.frombuffer(data, np.uint8, end - start, start) < 0x80)  # noqa: PLR2004
    return max(0, int(last_bytes) - 2)


def fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and where the content begins and ends, of each field in `data[position:end]`."""
    while position < end:
        tag, position = (data[position], position + 1) if data[position] < _ONE_BYTE else _varint(data, position, end)
        wire_type = tag & 7
        start = position
        if wire_type == _BYTES:
            if position < end and data[position] < _ONE_BYTE:  # most are short, and a call costs more than the rest
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
            raise DecodeError("a group, or no wire type at all")
        if position > end:
            raise DecodeError("a field is longer than what holds it")
        yield tag >> 3, wire_type, start, position


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(position, min(end, position + _LONGEST_VARINT)):
        byte = data[index]
        value |= (byte & 0x7F) << (7 * (index - position))
        if byte < _ONE_BYTE:  # the last of its bytes
            return value, index + 1
    raise DecodeError("a number has no end")


_PRIORITIES: dict[int, Priority] = {
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_DEFAULT: Priority.DEFAULT,
    pb.PRIORITY_BACKGROUND: Priority.BACKGROUND,
}
_MAX_TOKEN_ID = 2**31 - 1
_ONE_OPEN = (None,)
_PACKED_AT_ONCE = 8192
_EMPTY = Failure(Code.INVALID_ARGUMENT, "the input is empty: give text or token ids")
_BAD_ID = Failure(Code.INVALID_ARGUMENT, "a token id does not fit 31 bits")
_FLOAT32, _NO_TRUNCATION = int(pb.ENCODING_FLOAT32), int(pb.TRUNCATE_NONE)


def decode_embed(data: bytes, max_inputs: int) -> pb.EmbedRequest:
    """The message in these bytes. Raises InvalidRequest if it is above a limit or not a message."""
    try:
        check(data, max_inputs)
        return pb.EmbedRequest.FromString(data)
    except DecodeError:
        raise InvalidRequest("the message is not an embedding.v1.EmbedRequest: it cannot be decoded") from None


_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]', re.DOTALL)
"""The bytes that begin one or more Python objects: a string, an object, an array."""
_MARKS_PER_INPUT = 5  # {"tokenIds": {"ids": []}}
_OTHER_MARKS = 4096  # a request has fewer than 64 besides its inputs; the rest is for ids that are written as strings
_FIELD_NAMES = {name: field for field in pb.EmbedRequest.DESCRIPTOR.fields for name in (field.name, field.json_name)}
_TOKEN_ID_NAMES = frozenset({"tokenIds", "token_ids"})
_NOT_JSON = "the value is not an EmbedRequest in JSON"


def decode_json(value: bytes, max_inputs: int) -> pb.EmbedRequest:
    """The message in JSON. Raises Undecodable or InvalidRequest, which name the position of the fault.

    The messages of protobuf's own errors may quote a query's text, so they are not passed on.
    """
    check_marks(value, max_inputs)
    try:
        document = json.loads(value.decode())
    except (ValueError, RecursionError):
        raise Undecodable("the value is not JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise Undecodable("the value is not a JSON object")
    inputs: object = document.get("inputs")
    if inputs is not None and not isinstance(inputs, list):
        raise InvalidRequest(f"{_NOT_JSON}: inputs is not a list")
    if inputs and len(inputs) > max_inputs:
        raise InvalidRequest(f"{len(inputs)} inputs: at most {max_inputs} are taken")
    message = _without_inputs(document)
    message.inputs.extend([_input(item, f"inputs[{index}]") for index, item in enumerate(inputs or ())])
    if len(value) > MAX_TOKEN_IDS and sum(len(each.token_ids.ids) for each in message.inputs) > MAX_TOKEN_IDS:
        raise InvalidRequest(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request")
    return message


def check_marks(value: bytes, max_inputs: int) -> None:
    """A megabyte of JSON can hold 65,000 inputs, at 15 us each: with more than are allowed it is not parsed."""
    most = _MARKS_PER_INPUT * max_inputs + _OTHER_MARKS
    if len(value) > most and next(islice(_MARKS.finditer(value), most, None), None) is not None:
        raise InvalidRequest(
            f"the value holds more than {most} strings, objects and arrays: at most {max_inputs} inputs are taken"
        )


def _without_inputs(document: Mapping[str, object]) -> pb.EmbedRequest:
    """Everything but the inputs, by protobuf's own rules."""
    message = pb.EmbedRequest()
    for number, (name, value) in enumerate(document.items(), 1):
        if name not in _FIELD_NAMES:
            raise InvalidRequest(f"{_NOT_JSON}: a request has no field like number {number}")
        if name != "inputs" and not _fits({name: value}, message):
            raise InvalidRequest(f"{_NOT_JSON}: the value of {name} is invalid{_choices(name)}")
    return message


def _choices(name: str) -> str:
    enum = _FIELD_NAMES[name].enum_type
    return f": use one of {', '.join(enum.values_by_name)}" if enum is not None else ""


def _input(item: object, place: str) -> pb.Input:
    """One input; usual ones are decoded without protobuf's JSON rules, which take 1.5 us for a token id."""
    if isinstance(item, dict) and len(item) == 1:
        [(name, value)] = item.items()
        if (
            name in _TOKEN_ID_NAMES
            and isinstance(value, dict)
            and value.keys() == {"ids"}
            and isinstance(value["ids"], list)
        ):
            return _token_ids(value["ids"], f"{place}.{name}.ids")
        if name == "text" and isinstance(value, str):
            try:
                return pb.Input(text=value)
            except ValueError:
                raise InvalidRequest(f"{_NOT_JSON}: {place}.text holds half a character") from None
    message = pb.Input()
    if not _fits(item, message):
        raise InvalidRequest(f'{_NOT_JSON}: {place} is neither {{"text": ""}} nor {{"tokenIds": {{"ids": []}}}}')
    return message


def _token_ids(ids: list[object], place: str) -> pb.Input:
    try:
        numbers = [each for each in ids if type(each) is int]
        if len(numbers) == len(ids):
            return pb.Input(token_ids=pb.TokenIds(ids=numbers))
    except ValueError:
        raise InvalidRequest(f"{_NOT_JSON}: {place} must hold token ids") from None
    message = pb.TokenIds()
    if len(ids) > _OTHER_MARKS or not _fits({"ids": ids}, message):
        raise InvalidRequest(f"{_NOT_JSON}: {place} must hold whole numbers")
    return pb.Input(token_ids=message)


def _fits(document: object, message: pb.EmbedRequest | pb.Input | pb.TokenIds) -> bool:
    """Decode a part into `message`, by protobuf's own rules; False if it does not fit."""
    if not isinstance(document, dict):
        return False
    try:
        ParseDict(document, message)
    except Exception:  # noqa: BLE001 - anything: SystemError for a name with half a surrogate pair in it
        return False
    return True


def parse(
    message: pb.EmbedRequest,
    defaults: Defaults,
    origin: object,
    *,
    received_s: float,
    wall_s: float,
    deadline_s: float = inf,
) -> Request:
    """Turn a public message into a Request.

    `wall_s` is the wall clock (Unix seconds) at `received_s`; `deadline_s` is a deadline from outside the
    message (gRPC's own). Raises InvalidRequest where the whole request is at fault; an input at fault only has
    its own Failure.
    """
    inputs = message.inputs
    remaining = len(inputs)
    if not 0 < remaining <= defaults.max_inputs:
        limit = "at least one input is needed" if not remaining else f"at most {defaults.max_inputs} are taken"
        raise InvalidRequest(f"{remaining} inputs: {limit}", "inputs")
    values: Sequence[str | bytes] = (inputs[0].text,)
    if remaining > 1:
        values = [item.text for item in inputs]
    if message.HasField("expire_time"):
        expire_s = message.expire_time.seconds + message.expire_time.nanos * 1e-9
        deadline_s = min(deadline_s, received_s + expire_s - wall_s)
    outcomes: Sequence[Outcome | None] = _ONE_OPEN if remaining == 1 else [None] * remaining
    if not all(values):  # token ids, or nothing at all
        values, outcomes, remaining = _values(inputs)
    return Request(
        request_id=message.request_id or random_id(),
        model=message.model or defaults.model,
        model_revision=message.model_revision,
        inputs=values,
        options=_options(message),
        priority=priority_of(message.priority, defaults.priority),
        source=defaults.source,
        tenant=(defaults.trusts_tenant and message.tenant) or defaults.tenant,
        received_s=received_s,
        deadline_s=deadline_s,
        origin=origin,
        outcomes=outcomes,
        remaining=remaining,
        failed=remaining < len(outcomes),
    )


def _values(inputs: Sequence[pb.Input]) -> tuple[list[str | bytes], list[Outcome | None], int]:
    """Each input's text or packed ids, its failure if it holds neither, and how many have no failure."""
    values: list[str | bytes] = []
    outcomes: list[Outcome | None] = []
    for item in inputs:
        value = item.text or _packed_ids(item.token_ids.ids)
        failure = None if isinstance(value, str) or value else _EMPTY
        if value is None:
            failure, value = _BAD_ID, b""
        values.append(value)
        outcomes.append(failure)
    return values, outcomes, outcomes.count(None)


def _packed_ids(ids: Sequence[int]) -> bytes | None:
    if not ids:
        return b""
    if len(ids) > _PACKED_AT_ONCE:  # so that other threads have their turns
        pieces = [_packed_ids(ids[start : start + _PACKED_AT_ONCE]) for start in range(0, len(ids), _PACKED_AT_ONCE)]
        return None if None in pieces else b"".join(piece for piece in pieces if piece)
    if max(ids) > _MAX_TOKEN_ID:
        return None
    return struct.pack(f"<{len(ids)}i", *ids)


def random_id() -> str:
    """For a request without an id; as unlike others as a UUID, at a tenth of its cost."""
    return f"{random.getrandbits(128):032x}"


def priority_of(value: int, default: Priority) -> Priority:
    """The class of that number, or the default. Raises InvalidRequest."""
    if not value:
        return default
    priority = _PRIORITIES.get(value)
    if priority is None:
        raise InvalidRequest(f"priority {value} is not known: use one of {list(_PRIORITIES)}", "priority")
    return priority


def options_of(truncate: int, truncate_to: int) -> Options:
    """Of a request for scores, which are never normalised. Raises InvalidRequest."""
    return _checked_options(0, _FLOAT32, False, truncate or _NO_TRUNCATION, 0, truncate_to)


def _options(message: pb.EmbedRequest) -> Options:
    return _checked_options(
        message.dimensions,
        message.encoding or _FLOAT32,
        message.normalize if message.HasField("normalize") else None,
        message.truncate or _NO_TRUNCATION,
        message.input_type,
        message.truncate_to,
    )


@lru_cache(maxsize=1024)
def _checked_options(  # noqa: PLR0917 - lru_cache is quicker by position
    dimensions: int,
    encoding: int,
    normalize: bool | None,  # noqa: FBT001 - three values, and lru_cache is quicker by position
    truncate: int,
    input_type: int,
    truncate_to: int,
) -> Options:
    for name, value, enum in (
        ("encoding", encoding, pb.Encoding),
        ("truncate", truncate, pb.Truncate),
        ("input_type", input_type, pb.InputType),
    ):
        if value not in enum.values():
            raise InvalidRequest(f"{name} {value} is not known: use one of {', '.join(enum.keys())}", name)
    return Options(dimensions, encoding, normalize, truncate, input_type, truncate_to)
