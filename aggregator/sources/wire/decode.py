"""Decode an EmbedRequest in protobuf or JSON, and make a Request of it.

Its bytes are checked for the cost of parsing. A message of 4 MiB can hold 2 million inputs or 4 million token
ids: parsed, that is a hundred megabytes. The walk over its fields ends at the first bound that it passes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from aggregator.errors import InvalidRequest
from aggregator.request.kind import Parts
from aggregator.request.request import Chunks, Defaults, Failure, Input, Options, Outcome
from aggregator.sources.wire.fields import BYTES, MAX_INT32, ONE_BYTE, count_token_ids, fields
from aggregator.sources.wire.message import OTHER_MARKS, check_count, check_marks, choices, decode_checked, json_object
from protos.embedding.v1 import embedding_pb2 as pb

SMALL_BYTES = 32 * 1024
"""Fewer bytes are parsed faster than they are checked, and cannot hold much."""
MAX_TOKEN_IDS = 1 << 20
"""The most token ids of one request; they are held as 4 bytes each."""

_FIELDS_PER_INPUT = 4  # one has two: its content, and its number of tokens
_OTHER_FIELDS = 64  # a request has 12 besides its inputs
_HEAD_FIELDS = 2048  # half a millisecond of walking; the id usually comes first
_INPUTS = pb.EmbedRequest.INPUTS_FIELD_NUMBER
_TEXT_TAG = pb.Input.TEXT_FIELD_NUMBER << 3 | 2
_TOKEN_IDS, _CHUNKS = pb.Input.TOKEN_IDS_FIELD_NUMBER, pb.Input.CHUNKS_FIELD_NUMBER


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
        if number == _INPUTS and wire_type == BYTES:
            inputs += 1
            for more_chunks, ids in _parts(data, start, end, max_inputs):
                walked, inputs, token_ids = walked + 1, inputs + more_chunks, token_ids + ids
                if token_ids > MAX_TOKEN_IDS:
                    raise InvalidRequest(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request")
                if walked > max_fields:
                    break
            if inputs > max_inputs:
                raise InvalidRequest(f"more than {max_inputs} inputs: at most {max_inputs} are taken")
        if walked > max_fields:
            raise InvalidRequest("the message repeats fields too often")


def _parts(data: bytes, start: int, end: int, max_inputs: int) -> Iterator[tuple[int, int]]:
    """The chunks beyond the first, and the token ids, in each field of an Input."""
    for number, wire_type, begins, ends in () if _is_one_text(data, start, end) else fields(data, start, end):
        chunks = token_ids = 0
        if number == _CHUNKS and wire_type == BYTES:
            chunks = max(0, sum(1 for _ in islice(fields(data, begins, ends), max_inputs + 1)) - 1)
        if number == _TOKEN_IDS and wire_type == BYTES:
            token_ids = count_token_ids(data, begins, ends)
        yield chunks, token_ids


def _is_one_text(data: bytes, start: int, end: int) -> bool:
    """Whether an Input is a text of less than 16 kB and nothing else, as most are."""
    size = end - start - 2
    if size < 0 or data[start] != _TEXT_TAG:
        return False
    first = data[start + 1]
    if first < ONE_BYTE:
        return first == size
    return size > 0 and data[start + 2] < ONE_BYTE and first - ONE_BYTE + (data[start + 2] << 7) == size - 1


def head(data: bytes) -> pb.EmbedRequest:
    """The message without its inputs, as far as it can be read with little effort: usually its id."""
    kept: list[bytes] = []
    begins = 0
    try:
        for walked, (number, _, _, ends) in enumerate(fields(data, 0, len(data))):
            if number != _INPUTS:
                kept.append(data[begins:ends])
            begins = ends
            if walked == _HEAD_FIELDS:
                break
    except DecodeError:
        pass  # the fields before it are kept
    try:
        return pb.EmbedRequest.FromString(b"".join(kept))
    except DecodeError:
        return pb.EmbedRequest()


_ONE_OPEN = (None,)
_PACKED_AT_ONCE = 8192  # ids; they take a millisecond at most, in which no other thread runs
_FLOAT32, _NO_TRUNCATION = int(pb.ENCODING_FLOAT32), int(pb.TRUNCATE_NONE)


def decode_embed(data: bytes, max_inputs: int) -> pb.EmbedRequest:
    """The message in these bytes. Raises InvalidRequest if it is above a limit or not a message."""
    return decode_checked(pb.EmbedRequest, data, check, max_inputs)


_FIELD_NAMES = {
    name: cast("FieldDescriptor", field)
    for field in pb.EmbedRequest.DESCRIPTOR.fields
    for name in (field.name, field.json_name)
}
_TOKEN_ID_NAMES = frozenset({"tokenIds", "token_ids"})
_NOT_JSON = "the value is not an EmbedRequest in JSON"


def decode_embed_json(value: bytes, max_inputs: int) -> pb.EmbedRequest:
    """The message in JSON. Raises Undecodable or InvalidRequest, which name the position of the fault.

    The messages of protobuf's own errors may quote a query's text, so they are not passed on.
    """
    check_marks(value, max_inputs)
    document = json_object(value)
    inputs = document.get("inputs")
    if inputs is not None and not isinstance(inputs, list):
        raise InvalidRequest(f"{_NOT_JSON}: inputs is not a list")
    if inputs and len(inputs) > max_inputs:
        raise InvalidRequest(f"{len(inputs)} inputs: at most {max_inputs} are taken")
    message = _without_inputs(document)
    message.inputs.extend([_input(item, f"inputs[{index}]") for index, item in enumerate(inputs or ())])
    if len(value) > MAX_TOKEN_IDS and sum(len(each.token_ids.ids) for each in message.inputs) > MAX_TOKEN_IDS:
        raise InvalidRequest(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request")
    return message


def _without_inputs(document: Mapping[str, object]) -> pb.EmbedRequest:
    """Everything but the inputs, by protobuf's own rules."""
    message = pb.EmbedRequest()
    for number, (name, value) in enumerate(document.items(), 1):
        if name not in _FIELD_NAMES:
            raise InvalidRequest(f"{_NOT_JSON}: a request has no field like number {number}")
        if name != "inputs" and not _fits({name: value}, message):
            raise InvalidRequest(f"{_NOT_JSON}: the value of {name} is invalid{choices(_FIELD_NAMES[name])}", name)
    return message


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
        forms = '{"text": ""}, {"tokenIds": {"ids": []}} and {"chunks": {"texts": []}}'
        raise InvalidRequest(f"{_NOT_JSON}: {place} is none of {forms}")
    return message


def _token_ids(ids: list[object], place: str) -> pb.Input:
    try:
        numbers = [each for each in ids if type(each) is int]
        if len(numbers) == len(ids):
            return pb.Input(token_ids=pb.TokenIds(ids=numbers))
    except ValueError:
        raise InvalidRequest(f"{_NOT_JSON}: {place} must hold token ids") from None
    message = pb.TokenIds()
    if len(ids) > OTHER_MARKS or not _fits({"ids": ids}, message):
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


def parts(message: pb.EmbedRequest, defaults: Defaults) -> Parts:
    """The inputs of a message, and its options. Raises InvalidRequest."""
    inputs = message.inputs
    count = len(inputs)
    if not 0 < count <= defaults.max_inputs:
        check_count(count, defaults.max_inputs, "inputs", "inputs")
    first = inputs[0]
    text = first.text
    values: Sequence[Input] = (text,)
    outcomes: Sequence[Outcome | None] = _ONE_OPEN
    are_texts = bool(text) and not first.spans
    if count > 1:
        values, outcomes = [item.text for item in inputs], [None] * count
        are_texts = all(values) and not any(item.spans for item in inputs)
    if not are_texts:  # token ids, chunks, or nothing at all
        values, outcomes = _values(inputs)
        vectors = sum(each.count if isinstance(each, Chunks) else 1 for each in values)
        if vectors > defaults.max_inputs:
            raise InvalidRequest(f"{vectors} inputs and chunks: at most {defaults.max_inputs} are taken", "inputs")
    options = _checked_options(
        message.dimensions,
        message.encoding or _FLOAT32,
        message.normalize if message.HasField("normalize") else None,
        message.truncate or _NO_TRUNCATION,
        message.input_type,
        message.truncate_to,
    )
    return values, outcomes, options, None


def _values(inputs: Sequence[pb.Input]) -> tuple[list[Input], list[Outcome | None]]:
    """Each input's text, packed ids or chunks, and its failure if it holds none of them."""
    values: list[Input] = []
    outcomes: list[Outcome | None] = []
    for item in inputs:
        try:
            values.append(_value(item))
            outcomes.append(None)
        except InvalidRequest as error:
            values.append(b"")
            outcomes.append(Failure.of(error))
    return values, outcomes


def _value(item: pb.Input) -> Input:
    """Raises InvalidRequest."""
    texts = item.chunks.texts
    if "" in texts:
        raise InvalidRequest(f"chunk {list(texts).index('')} is empty: leave it out")
    ids = _packed_ids(item.token_ids.ids)
    if ids is None:
        raise InvalidRequest("a token id does not fit 31 bits")
    if item.spans:
        return Chunks(token_ids=ids, spans=_spans(item.spans, len(item.token_ids.ids)))
    value = Chunks(tuple(texts)) if texts else item.text or ids
    if not value:
        raise InvalidRequest("the input is empty: send a text, or leave it out")
    return value


def _spans(spans: Sequence[pb.Span], tokens: int) -> bytes:
    last = 0
    for index, span in enumerate(spans):
        if not last <= span.start < span.end <= tokens:
            raise InvalidRequest(
                f"span {index} is empty, begins before the one in front of it ends, or ends behind the"
                f" {tokens} token ids"
            )
        last = span.end
    return struct.pack(f"<{2 * len(spans)}i", *(place for span in spans for place in (span.start, span.end)))


def _packed_ids(ids: Sequence[int]) -> bytes | None:
    if not ids:
        return b""
    if len(ids) > _PACKED_AT_ONCE:  # so that other threads have their turns
        pieces = [_packed_ids(ids[start : start + _PACKED_AT_ONCE]) for start in range(0, len(ids), _PACKED_AT_ONCE)]
        return None if None in pieces else b"".join(piece for piece in pieces if piece)
    if max(ids) > MAX_INT32:
        return None
    return struct.pack(f"<{len(ids)}i", *ids)


def options_of(truncate: int, truncate_to: int) -> Options:
    """The options of a request for scores, which are never normalised. Raises InvalidRequest."""
    return _checked_options(0, _FLOAT32, False, truncate or _NO_TRUNCATION, 0, truncate_to)


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
