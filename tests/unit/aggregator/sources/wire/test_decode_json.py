"""JSON is read as protobuf's own rules say, but bounded; what is wrong is told by its place, never by its content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from aggregator.errors import InvalidRequest, RequestError
from aggregator.sources.wire import message
from aggregator.sources.wire.decode import MAX_TOKEN_IDS, decode_embed_json
from protos.embedding.v1 import embedding_pb2 as pb

MAX_INPUTS = 8


def parse(document: Any) -> pb.EmbedRequest:
    return decode_embed_json(json.dumps(document).encode(), MAX_INPUTS)


def by_protobuf(document: Any) -> pb.EmbedRequest | None:
    inputs = document.get("inputs")
    if isinstance(inputs, list) and "" in inputs:  # which `ParseDict` takes for an empty message
        return None
    try:
        return ParseDict(document, pb.EmbedRequest())
    except Exception:  # noqa: BLE001 - it raises SystemError, too
        return None


ODD = ["1", "1.0", " 1", "\ud800", "ENCODING_INT8", "2026-01-01T00:00:00Z", 1.0, 2, 7.5]
NUMBERS = st.booleans() | st.integers(-(2**33), 2**33) | st.floats()
SCALARS = st.none() | NUMBERS | st.text(max_size=4) | st.sampled_from(ODD)
IDS = st.lists(st.integers(0, 5) | SCALARS, max_size=3) | SCALARS
TOKEN_IDS = st.dictionaries(st.sampled_from(["ids", "x"]), IDS, max_size=2) | SCALARS
INPUT = st.dictionaries(st.sampled_from(["text", "tokenIds", "token_ids", "y"]), SCALARS | TOKEN_IDS, max_size=2)
DOCUMENTS = st.dictionaries(
    st.sampled_from(
        [
            *("requestId", "request_id", "model", "encoding", "expireTime", "normalize", "dimensions", "truncate"),
            *("inputs", "[a.b]", "\ud800"),
        ]
    ),
    SCALARS | st.lists(INPUT | SCALARS, max_size=3),
    max_size=4,
)


@given(DOCUMENTS)
def test_json_is_read_as_protobuf_s_own_rules_say(document: Any) -> None:
    expected = by_protobuf(document)
    if expected is not None:
        assert parse(document) == expected
    else:
        with pytest.raises(RequestError):
            parse(document)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"inputs": "SECRET"}, "inputs is not a list"),
        ({"inputs": ["SECRET"]}, "inputs[0]"),
        ({"inputs": [{"text": "fine"}, {"text": ["SECRET"]}]}, "inputs[1]"),
        ({"inputs": [{"text": "fine"}, {"SECRET": "SECRET"}]}, "inputs[1]"),
        ({"inputs": [{"text": "SECRET\ud800"}]}, "inputs[0].text"),
        ({"inputs": [{"token_ids": {"ids": [1, "SECRET"]}}]}, "inputs[0].token_ids.ids"),
        ({"inputs": [{"tokenIds": {"ids": [-77]}}]}, "inputs[0].tokenIds.ids"),
        ({"inputs": [{"tokenIds": "SECRET"}]}, "inputs[0]"),
        ({"dimensions": "SECRET"}, "dimensions"),
        ({"encoding": "SECRET"}, "encoding"),
        ({"expireTime": "SECRET"}, "expireTime"),
        ({"model": "m", "SECRET": "SECRET"}, "like number 2"),
        ({"\ud800": "SECRET"}, "like number 1"),
        (["SECRET"], "not a JSON object"),
    ],
)
def test_a_fault_is_told_by_its_place_and_never_by_its_content(document: Any, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(document)
    assert place in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert "77" not in str(caught.value)


def test_of_a_field_with_few_values_those_are_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse({"truncate": "SECRET"})
    choices = "TRUNCATE_UNSPECIFIED, TRUNCATE_NONE, TRUNCATE_START, TRUNCATE_END"
    assert str(caught.value).endswith(f"the value of truncate is invalid: use one of {choices}")
    with pytest.raises(InvalidRequest, match=r"the value of dimensions is invalid$"):
        parse({"dimensions": "SECRET"})


def test_what_is_wrong_beside_the_inputs_is_told_before_their_own_faults() -> None:
    with pytest.raises(InvalidRequest, match="value of encoding is invalid"):
        parse({"inputs": [{"text": 5}], "encoding": "SECRET"})


@pytest.mark.parametrize(
    ("item", "read"),
    [
        ({"text": "a", "tokenIds": None}, pb.Input(text="a")),
        ({"text": None, "token_ids": {"ids": [7]}}, pb.Input(token_ids=pb.TokenIds(ids=[7]))),
        ({}, pb.Input()),
    ],
)
def test_an_input_that_is_written_otherwise_is_read_by_protobuf_s_rules(item: Any, read: pb.Input) -> None:
    assert list(parse({"inputs": [item]}).inputs) == [read]


@pytest.mark.parametrize(
    "value",
    [
        json.dumps({"requestId": "mine", "inputs": [{"text": "a"}] * 65_000}).encode(),
        json.dumps({"requestId": "mine", "inputs": [[]] * 300_000}).encode(),
        json.dumps({"requestId": "mine", "inputs": ["a"] * 200_000}).encode(),
        b'{"requestId": "mine", "inputs": [' + b'{"text":"\\"{[' * 70_000,
        b'{"requestId": "mine"' + b"[" * 900_000,
    ],
)
def test_more_than_can_be_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", None)
        with pytest.raises(InvalidRequest, match="at most 8 inputs are taken"):
            decode_embed_json(value, MAX_INPUTS)


def test_too_many_inputs_are_counted() -> None:
    with pytest.raises(InvalidRequest, match=r"^9 inputs: at most 8 are taken$"):
        parse({"inputs": [{"text": "a"}] * 9})


def test_texts_may_hold_whatever_json_is_made_of() -> None:
    text = '{"inputs": [{"text": "\\"}]}' * 10_000
    assert parse({"inputs": [{"text": text}] * 8}).inputs[7].text == text


def test_ids_that_are_written_otherwise_are_taken_only_in_small_numbers() -> None:
    def asking(count: int) -> Any:
        return {"inputs": [{"tokenIds": {"ids": [7.0] * count}}]}

    assert list(parse(asking(4096)).inputs[0].token_ids.ids) == [7] * 4096
    with pytest.raises(InvalidRequest, match=r"inputs\[0\].tokenIds.ids must hold whole numbers"):
        parse(asking(4097))


def test_token_ids_of_all_inputs_together_are_bounded_as_in_protobuf() -> None:
    half = json.dumps({"tokenIds": {"ids": [1] * (MAX_TOKEN_IDS // 2)}})
    most = f'{{"inputs":[{half},{half}]}}'.encode()
    assert len(decode_embed_json(most, 3).inputs) == 2
    one_more = most.replace(b"]}}]}", b']}},{"tokenIds":{"ids":[1]}}]}')
    with pytest.raises(InvalidRequest, match="more than 1048576 token ids"):
        decode_embed_json(one_more, 3)


def test_a_long_text_is_not_searched_for_strings_that_it_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of 4 MiB lets no other thread run for 40 ms."""

    class Marks:
        def __init__(self) -> None:
            self.searched: list[int] = []

        def finditer(self, value: bytes) -> Iterator[bytes]:
            self.searched.append(len(value))
            return iter([value] * 10_000)

    marks = Marks()
    monkeypatch.setattr(message, "_MARKS", marks)
    assert len(parse({"inputs": [{"text": "a " * 100_000}]}).inputs) == 1
    assert not marks.searched
    with pytest.raises(InvalidRequest, match="more than 4136 strings"):
        parse({"inputs": [{"text": "[" * 5000}]})
    assert len(marks.searched) == 1
