"""Decode an EmbedRequest in JSON: its size is checked before it is parsed, and errors name the position of the fault.

The messages of protobuf's own errors may quote a query's text, so they are not passed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice

from google.protobuf.json_format import ParseDict

from aggregator.errors import InvalidRequest, Undecodable
from aggregator.sources.parsing import MAX_TOKEN_IDS
from protos.embedding.v1 import embedding_pb2 as pb

_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]', re.DOTALL)
"""What becomes one or more Python objects: a string, an object, an array."""
_MARKS_PER_INPUT = 5  # {"tokenIds": {"ids": []}}
_OTHER_MARKS = 4096  # a request has fewer than 64 besides its inputs; the rest is for ids that are written as strings
_FIELDS = {name: field for field in pb.EmbedRequest.DESCRIPTOR.fields for name in (field.name, field.json_name)}
_TOKEN_IDS = frozenset({"tokenIds", "token_ids"})
_WRONG = "the value is not an EmbedRequest in JSON"


def parse(value: bytes, max_inputs: int) -> pb.EmbedRequest:
    """The request in a record's value. Raises Undecodable or InvalidRequest."""
    _check_size(value, max_inputs)
    try:
        document = json.loads(value.decode())
    except (ValueError, RecursionError):
        raise Undecodable("the value is not JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise Undecodable("the value is not a JSON object")
    inputs: object = document.get("inputs")
    if inputs is not None and not isinstance(inputs, list):
        raise InvalidRequest(f"{_WRONG}: inputs is not a list")
    if inputs and len(inputs) > max_inputs:
        raise InvalidRequest(f"{len(inputs)} inputs: at most {max_inputs} are taken")
    message = _without_inputs(document)
    message.inputs.extend([_input(item, f"inputs[{index}]") for index, item in enumerate(inputs or ())])
    if len(value) > MAX_TOKEN_IDS and sum(len(each.token_ids.ids) for each in message.inputs) > MAX_TOKEN_IDS:
        raise InvalidRequest(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request")
    return message


def _check_size(value: bytes, max_inputs: int) -> None:
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
        if name not in _FIELDS:
            raise InvalidRequest(f"{_WRONG}: a request has no field like number {number}")
        if name != "inputs" and not _fits({name: value}, message):
            raise InvalidRequest(f"{_WRONG}: the value of {name} is invalid{_choices(name)}")
    return message


def _choices(name: str) -> str:
    enum = _FIELDS[name].enum_type
    return f": use one of {', '.join(enum.values_by_name)}" if enum is not None else ""


def _input(item: object, place: str) -> pb.Input:
    """One input; usual ones are decoded without protobuf's JSON rules, which take 1.5 us for a token id."""
    if isinstance(item, dict) and len(item) == 1:
        [(name, value)] = item.items()
        if (
            name in _TOKEN_IDS
            and isinstance(value, dict)
            and value.keys() == {"ids"}
            and isinstance(value["ids"], list)
        ):
            return _token_ids(value["ids"], f"{place}.{name}.ids")
        if name == "text" and isinstance(value, str):
            try:
                return pb.Input(text=value)
            except ValueError:
                raise InvalidRequest(f"{_WRONG}: {place}.text holds half a character") from None
    message = pb.Input()
    if not _fits(item, message):
        raise InvalidRequest(f'{_WRONG}: {place} is neither {{"text": ""}} nor {{"tokenIds": {{"ids": []}}}}')
    return message


def _token_ids(ids: list[object], place: str) -> pb.Input:
    try:
        numbers = [each for each in ids if type(each) is int]
        if len(numbers) == len(ids):
            return pb.Input(token_ids=pb.TokenIds(ids=numbers))
    except ValueError:
        raise InvalidRequest(f"{_WRONG}: {place} must hold token ids") from None
    message = pb.TokenIds()
    if len(ids) > _OTHER_MARKS or not _fits({"ids": ids}, message):
        raise InvalidRequest(f"{_WRONG}: {place} must hold whole numbers")
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
