"""The bodies of /tokenize and /detokenize: what is asked for, and which field is at fault."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from aggregator.request.request import Failure
from aggregator.sources.http.errors import FieldError, error_of
from aggregator.sources.http.json_body import decode_body
from aggregator.wings.tokenize.bodies import DETOKENIZE, TOKENIZE, read_detokenize

MINIMAL: list[tuple[msgspec.json.Decoder[Any], dict[str, Any]]] = [
    (TOKENIZE, {"prompt": "a", "add_special_tokens": False}),
    (DETOKENIZE, {"tokens": [1]}),
]


@pytest.mark.parametrize(("decoder", "fields"), MINIMAL, ids=("tokenize", "detokenize"))
@pytest.mark.parametrize("nothing", [None, [], {}], ids=str)
def test_a_field_without_a_value_asks_for_nothing(
    decoder: msgspec.json.Decoder[Any], fields: dict[str, Any], nothing: object
) -> None:
    body = json.dumps({**fields, "wings": nothing}).encode()
    assert decode_body(decoder, body) == decode_body(decoder, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("decoder", "fields", "param"),
    [
        (TOKENIZE, {"prompt": 5}, "prompt"),
        (TOKENIZE, {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens[0]"),
    ],
    ids=str,
)
def test_the_field_at_fault_is_named_as_it_was_written(
    decoder: msgspec.json.Decoder[Any], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(FieldError) as refused:
        decode_body(decoder, json.dumps(fields).encode())
    assert error_of(Failure.of(refused.value))["param"] == param


def test_tokens_that_are_empty_are_not_missing() -> None:
    assert decode_body(DETOKENIZE, b'{"tokens":[],"wings":null}') == decode_body(DETOKENIZE, b'{"tokens":[]}')
    with pytest.raises(FieldError, match="tokens: expected a list, each a whole number of at least 0, got null"):
        decode_body(DETOKENIZE, b'{"tokens":null}')


def test_more_token_ids_than_any_model_takes_are_refused_undecoded() -> None:
    ids = [1] * 20_000
    data = json.dumps({"tokens": ids, "model": "m"}).encode()
    assert read_detokenize(data, most=20_000).tokens == ids
    with pytest.raises(FieldError, match="more than 19998 token ids"):
        read_detokenize(data, most=19_998)
