"""What a body's JSON holds is bounded before it is decoded, and the largest that each form allows is taken."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.request.request import MAX_INPUTS, Defaults
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http import json_bounds
from aggregator.sources.http.embeddings import EmbeddingsReader, EmbeddingsRequest
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.http.json_bounds import MOST_ELEMENTS, holds_more
from aggregator.sources.wire.decode import SMALL_BYTES
from aggregator.wings.generation.forms import GenerationReader
from aggregator.wings.http_forms.cohere import read_embed
from aggregator.wings.http_forms.voyage import read_documents
from aggregator.wings.ranking.http import read_classify, read_rerank, read_score
from tests.support.fake_source import GRPC
from tests.support.http_bodies import AnyRevision

DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE)
EMBEDDINGS = EmbeddingsReader(AnyRevision(), trusts_token_ids=True)
READS: dict[str, Any] = {
    "embeddings": EMBEDDINGS,
    "embed": partial(read_embed, version=2),
    "rerank": partial(read_rerank, returns_documents=True),
    "score": read_score,
    "classify": read_classify,
    "documents": read_documents,
    "chat": GenerationReader(AnyRevision(), trusts_token_ids=False).chat,
}
CODE = 'if (a[0] == "{") { return [[], {"b": "\\\\"}]; } ' * 8
"""Brackets and quotes within a text are none of the body."""
PART = {"type": "text", "text": CODE}
LARGEST: list[tuple[str, dict[str, Any]]] = [
    ("embeddings", {"input": [CODE] * MAX_INPUTS, "tool_calls": None}),
    ("embeddings", {"input": [[101, *range(9), 102]] * MAX_INPUTS}),
    ("embed", {"texts": [CODE] * MAX_INPUTS}),
    ("embed", {"inputs": [{"content": [PART]}] * MAX_INPUTS}),
    ("rerank", {"query": "q", "documents": [{"text": CODE}] * MAX_INPUTS}),
    ("rerank", {"query": "q", "documents": [{"content": [PART]}] * MAX_INPUTS}),
    ("score", {"text_1": [{"text": CODE}] * MAX_INPUTS, "text_2": [{"text": CODE}] * MAX_INPUTS}),
    ("classify", {"input": [CODE] * MAX_INPUTS}),
    ("documents", {"inputs": [[CODE]] * MAX_INPUTS}),
    ("documents", {"inputs": [[CODE] * MAX_INPUTS]}),
    ("chat", {"messages": [{"role": "user", "content": [PART] * 4, "tool_calls": []}] * 1024}),
]
NESTED = b"[" + b"[]," * 20_000 + b"[]]"
TOO_MANY = "the body has too many texts, lists and objects: send fewer inputs in one request"


@pytest.mark.parametrize(("form", "body"), [case for case in LARGEST if case[0] in READS])
@pytest.mark.parametrize("escapes", [False, True])
def test_the_largest_body_of_each_form_is_taken(form: str, body: dict[str, Any], escapes: bool) -> None:
    data = json.dumps(body, ensure_ascii=escapes).encode()
    assert len(data) > SMALL_BYTES
    READS[form](data, DEFAULTS, "id")


NESTED_BODIES: list[tuple[str, bytes]] = [
    ("embeddings", b'{"input":"a","metadata":%b}' % NESTED),
    ("embeddings", b'\xef\xbb\xbf{"input":"a","metadata":%b}' % NESTED),
    ("rerank", b'{"query":"q","documents":%b}' % NESTED.replace(b"[]", b"{}")),
    ("documents", b'{"inputs":%b}' % NESTED),
    ("chat", b'{"messages":[{"role":"user","content":%b}]}' % NESTED),
]


@pytest.mark.parametrize(("form", "data"), [case for case in NESTED_BODIES if case[0] in READS])
def test_more_lists_and_objects_than_any_form_has_are_refused(form: str, data: bytes) -> None:
    with pytest.raises(FieldError, match=TOO_MANY):
        READS[form](data, DEFAULTS, "id")


@pytest.mark.parametrize("value", [b"[[1], {}]", b'"salt"', b"1", b"{}", b"false"])
def test_a_field_that_changes_nothing_is_named_and_not_decoded(value: bytes) -> None:
    asked = decode_body(msgspec.json.Decoder(EmbeddingsRequest), b'{"input":"a","metadata":%b}' % value)
    assert isinstance(asked.metadata, msgspec.Raw)
    assert bytes(asked.metadata) == value
    assert asked.ignored() == "metadata"


def test_a_field_that_changes_nothing_may_be_null() -> None:
    data = b'{"input":"a","metadata": null , "cache_salt":null}'
    assert not decode_body(msgspec.json.Decoder(EmbeddingsRequest), data).ignored()


def test_half_a_character_among_too_many_numbers_is_not_looked_for() -> None:
    data = rb'{"input":["\ud800",' + b"1," * (MOST_ELEMENTS - 1) + b"1]}"
    with pytest.raises(FieldError, match="half a character"):
        EMBEDDINGS(data, DEFAULTS, "id")
    with pytest.raises(FieldError, match="the body is not JSON in UTF-8"):
        EMBEDDINGS(data.replace(b"1]", b"1,1]"), DEFAULTS, "id")


def marks_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(marks_of, value.values()))
    return 1 + sum(map(marks_of, value)) if isinstance(value, list) else 0


VALUES = st.recursive(
    st.text(alphabet='a"\\[]{}, é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='"\\['), inner),
    max_leaves=30,
)


@given(value=VALUES, piece=st.integers(1, 9), escapes=st.booleans())
def test_brackets_outside_of_texts_are_counted_to_the_last_one(value: object, piece: int, escapes: bool) -> None:
    data = json.dumps(value, ensure_ascii=escapes).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "SMALL_BYTES", 0)
        patch.setattr(json_bounds, "_PIECE_BYTES", piece)
        marks = marks_of(value)
        assert not holds_more(data, b"[{", marks)
        assert not marks or holds_more(data, b"[{", marks - 1)


def test_a_small_body_is_not_looked_through() -> None:
    assert not holds_more(b"[" * SMALL_BYTES, b"[{", 0)
    assert holds_more(b"[" * (SMALL_BYTES + 1), b"[{", SMALL_BYTES)
