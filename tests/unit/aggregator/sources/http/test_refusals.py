"""Each field of each form is refused by its own name, with what it takes, what came, and a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import msgspec
import pytest
from msgspec import inspect

from aggregator.errors import InvalidRequest
from aggregator.request.request import Defaults
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http import refusals
from aggregator.sources.http.embeddings import EmbeddingsReader, EmbeddingsRequest
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.wings.generation.forms import ChatMessage, ChatRequest, CompletionRequest, GenerationReader
from aggregator.wings.http_forms.cohere import EmbedBody, read_embed
from aggregator.wings.http_forms.voyage import DocumentsBody, read_documents
from aggregator.wings.ranking.http import (
    ClassifyBody,
    RerankBody,
    ScoreBody,
    read_classify,
    read_rerank,
    read_score,
)
from aggregator.wings.tokenize.bodies import DETOKENIZE, TOKENIZE, Detokenize, Tokenize
from tests.support.fake_source import GRPC
from tests.support.http_bodies import AnyRevision

DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE)
GENERATION = GenerationReader(AnyRevision(), trusts_token_ids=False)
Form = tuple[type[msgspec.Struct], Callable[[bytes, Defaults, str], object], Mapping[str, Any]]
FORMS: list[Form] = [
    (EmbeddingsRequest, EmbeddingsReader(AnyRevision(), trusts_token_ids=False), {"input": "a"}),
    (DocumentsBody, read_documents, {"inputs": [["a"]]}),
    (EmbedBody, partial(read_embed, version=1), {"texts": ["a"]}),
    (EmbedBody, partial(read_embed, version=2), {"texts": ["a"]}),
    (RerankBody, partial(read_rerank, returns_documents=True), {"query": "a", "documents": ["b"]}),
    (ScoreBody, read_score, {"queries": "a", "documents": "b"}),
    (ClassifyBody, read_classify, {"input": "a"}),
    (CompletionRequest, GENERATION.completion, {"prompt": "a"}),
    (ChatRequest, GENERATION.chat, {"messages": [{"role": "user", "content": "a"}]}),
    (Tokenize, lambda data, *_: decode_body(TOKENIZE, data), {"prompt": "a"}),
    (Detokenize, lambda data, *_: decode_body(DETOKENIZE, data), {"tokens": [1]}),
]
FREE = {"cache_salt", "media_io_kwargs", "metadata", "mm_processor_kwargs", "safety_identifier"}
"""Fields that may hold anything, as nothing is made of them."""
FIELDS = [
    pytest.param(form, name, id=f"{form[0].__name__} {name}")
    for form in FORMS
    for name in form[0].__struct_fields__
    if name not in FREE
]
REMEDIES = [
    pytest.param(form, name, remedy, id=f"{form[0].__name__} {name}")
    for form in FORMS
    for name, remedy in getattr(form[0], "remedies", {}).items()
]


def refused(form: Form, fields: Mapping[str, Any]) -> InvalidRequest:
    _, read, minimal = form
    with pytest.raises(InvalidRequest) as error:
        read(json.dumps({**minimal, **fields}).encode(), DEFAULTS, "r")
    return error.value


def form_of(kind: type[msgspec.Struct]) -> Form:
    return next(each for each in FORMS if each[0] is kind)


def field_type(form: type[msgspec.Struct], name: str) -> inspect.Type:
    fields = cast("inspect.StructType", inspect.type_info(form)).fields
    return next(each.type for each in fields if each.name == name)


@pytest.mark.parametrize(("form", "name"), FIELDS)
def test_a_field_of_another_type_is_told_what_it_takes(form: Form, name: str) -> None:
    is_flag = inspect.BoolType() in getattr(field_type(form[0], name), "types", (field_type(form[0], name),))
    error = refused(form, {name: "yes" if is_flag else True})
    assert error.field == name
    assert str(error).startswith(f"{name}: expected ")
    assert "`" not in str(error), "no type of Python's is named"


@pytest.mark.parametrize(("form", "name"), FIELDS)
def test_a_field_that_is_misspelt_is_guessed(form: Form, name: str) -> None:
    error = refused(form, {f"{name}x": 5})
    assert error.field == f"{name}x"
    assert str(error) == f"unknown field {name}x: did you mean {name}?"


@pytest.mark.parametrize(("form", "name", "remedy"), REMEDIES)
def test_a_field_of_another_api_has_its_remedy(form: Form, name: str, remedy: str) -> None:
    error = refused(form, {name: 5})
    assert error.field == name
    assert str(error) == (remedy if name in remedy else f"{name} is not supported: {remedy}")


TYPES = "expected one of base64, binary, float, int8, ubinary, uint8"
DTYPES = "expected one of binary, float, int8, ubinary, uint8"
CONTENTS = "unknown field messages[0].contents"
NUMBER = "expected a whole number from 1 to 2147483647"
IMAGE = {"content": [{"type": "image"}]}
WORDS: list[tuple[type[msgspec.Struct], dict[str, Any], str]] = [
    (EmbeddingsRequest, {"input": None}, "input: expected a text or a list of texts"),
    (
        EmbeddingsRequest,
        {"output_dtype": "int4"},
        "output_dtype: expected one of binary, float, int8, ubinary, uint8, got 'int4'",
    ),
    (EmbeddingsRequest, {"dimensions": 0}, f"dimensions: {NUMBER}"),
    (EmbeddingsRequest, {"dimensions": 10**400}, f"dimensions: {NUMBER}"),
    (EmbeddingsRequest, {"truncation": 1}, "truncation: expected true or false, got a whole number"),
    (EmbeddingsRequest, {"padding": "max_length"}, "padding: expected 'do_not_pad', got 'max_length'"),
    (DocumentsBody, {"inputs": ["a"]}, "inputs[0]: expected a list of texts, got a text"),
    (EmbedBody, {"embedding_types": ["float", "int4"]}, f"embedding_types[1]: {TYPES}, got 'int4'"),
    (EmbedBody, {"texts": None, "inputs": [IMAGE]}, "inputs[0].content[0].type: expected 'text', got 'image'"),
    (RerankBody, {"documents": [{"text": 5}]}, "documents[0].text: expected a text, got a whole number"),
    (RerankBody, {"documents": [{"image": "a"}]}, "unknown field documents[0].image: leave it out"),
    (CompletionRequest, {"temperature": "hot"}, "temperature: expected a number, got a text"),
    (CompletionRequest, {"stop": ["a"] * 17}, "stop: expected a text or a list of texts, at most 16"),
    (CompletionRequest, {"seed": 2**63}, "seed: expected a whole number of 64 bits, got 9223372036854775808"),
    (ChatRequest, {"messages": []}, "messages: expected a list, at most 1024, each an object with role"),
    (ChatRequest, {"messages": [{"content": "a"}]}, "messages[0].role is missing: expected a text"),
    (
        ChatRequest,
        {"messages": [{"role": "user", "contents": "a"}]},
        "unknown field messages[0].contents: did you mean content?",
    ),
    (
        ChatRequest,
        {"messages": [{"role": "user", "tool_calls": [1]}]},
        "messages[0].tool_calls is not supported: no tools are",
    ),
    (Tokenize, {"w" * 100: 5}, f"unknown field {'w' * 100}: leave it out"),
]


@pytest.mark.parametrize(("form", "body", "message"), WORDS, ids=[case[2] for case in WORDS])
def test_a_refusal_is_in_the_words_of_its_form(form: type[msgspec.Struct], body: dict[str, Any], message: str) -> None:
    assert str(refused(form_of(form), body)).startswith(message)


def test_a_body_that_is_no_object_is_told_what_one_has() -> None:
    with pytest.raises(FieldError, match="the body: expected an object with query, documents, got a list"):
        read_rerank(b"[1]", DEFAULTS, "r", returns_documents=True)


def test_remedies_are_of_fields_that_a_form_has_not() -> None:
    for form, *_ in FORMS:
        assert not set(getattr(form, "remedies", {})) & set(form.__struct_fields__), form
    assert ChatMessage.remedies == ChatRequest.remedies


LOOKS_LIKE_A_PLACE = (
    " - at `$",
    "x - at `$.input",
    "x` - at `$.input",
    "x` - at `$.input` - at `$[0]",
    "x` - at `$",
    "x` - at `$." + "a." * 2000 + "a",
    "x - at `$." + "model." * 100 + "model",
)


@pytest.mark.parametrize("name", LOOKS_LIKE_A_PLACE, ids=lambda name: name[:40])
def test_a_field_whose_name_looks_like_a_place_is_refused_by_its_name(name: str) -> None:
    error = refused(FORMS[0], {name: 5})
    assert str(error).startswith(f"unknown field {name}"[:300])
    assert error.field == (name if len(name) <= 300 else f"{name[:300]}…")


@pytest.mark.parametrize("text", LOOKS_LIKE_A_PLACE, ids=lambda text: text[:40])
def test_a_value_that_looks_like_a_place_is_no_place(text: str) -> None:
    error = refused(FORMS[0], {"output_dtype": text})
    assert error.field == "output_dtype"
    assert str(error).startswith(f"output_dtype: {DTYPES}, got '{text[:200]}")


PLACES = [
    (EmbeddingsRequest, {" - at `$" + ".a" * 100_000: 5}, 0),
    (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 5),
]


@pytest.mark.parametrize(("form", "body", "steps"), PLACES)
def test_the_steps_of_a_place_are_bounded(
    form: type[msgspec.Struct], body: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[int] = []
    type_at = vars(refusals)["_type_at"]

    def counted(kind: inspect.Type | None, steps: list[str]) -> inspect.Type | None:
        walked.append(len(steps))
        return cast("inspect.Type | None", type_at(kind, steps))

    monkeypatch.setattr(refusals, "_type_at", counted)
    refused(form_of(form), body)
    assert max(walked) == steps
