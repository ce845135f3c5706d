"""A body's JSON: what asks for nothing is no fault at any level, and a fault is named as its sender wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from aggregator.errors import InvalidRequest
from aggregator.request.request import Defaults, Failure
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.embeddings import EmbeddingsReader
from aggregator.sources.http.errors import FieldError, error_of
from aggregator.sources.wire.message import parse
from aggregator.wings.generation.forms import GenerationReader
from aggregator.wings.generation.http import HttpGenerationCall
from aggregator.wings.generation.kind import GENERATION
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_source import GRPC
from tests.support.http_bodies import AnyRevision, room
from tests.unit.aggregator.wings.generation.test_http import CHAT

DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE)
COMPLETIONS, CHATS, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
USER = {"role": "user", "content": "hi"}


def generation(path: str, body: bytes) -> pb.GenerateRequest:
    reader = GenerationReader(AnyRevision(), trusts_token_ids=False)
    message, asked = (reader.chat if path == CHATS else reader.completion)(body, DEFAULTS, "r")
    parse(GENERATION, message, DEFAULTS, HttpGenerationCall(room(), asked), received_s=0.0, wall_s=0.0)
    return message


def embeddings(body: bytes) -> embedding.EmbedRequest:
    message, _ = EmbeddingsReader(AnyRevision(), trusts_token_ids=False)(body, DEFAULTS, "r")
    return message


def read(path: str, body: bytes) -> object:
    return embeddings(body) if path == EMBEDDINGS else generation(path, body)


def chat(*messages: dict[str, Any], **fields: Any) -> list[tuple[str, str, str]]:
    read = generation(CHATS, json.dumps({"messages": messages, **fields}).encode())
    return [(each.role, each.content, each.name) for each in read.messages.messages]


@pytest.mark.parametrize(
    "nothing",
    [
        ChatCompletionMessage(role="assistant", content=None).model_dump(),
        {"refusal": None, "tool_calls": [], "annotations": [], "audio": None, "function_call": None, "content": None},
        {"tool_calls": None, "parsed": None, "reasoning_content": "", "refusal": ""},
        {"provider_specific_fields": {"citations": None, "images": []}},
        {"content": []},
        {},
    ],
    ids=str,
)
def test_an_answer_s_message_is_taken_with_all_that_it_has_not(nothing: dict[str, Any]) -> None:
    assert chat(USER, {"role": "assistant", **nothing}, USER)[1] == ("assistant", "", "")
    assert chat(USER, {"role": "assistant", **nothing, "content": "yes"}, USER)[1] == ("assistant", "yes", "")


def test_a_name_is_given_to_the_template() -> None:
    assert chat({**USER, "name": "ada"}, {**USER, "name": None}) == [("user", "hi", "ada"), ("user", "hi", "")]


MINIMAL: dict[str, dict[str, Any]] = {
    EMBEDDINGS: {"input": "a"},
    COMPLETIONS: {"prompt": "a"},
    CHATS: CHAT,
}


@pytest.mark.parametrize("path", MINIMAL)
@pytest.mark.parametrize("nothing", [None, [], {}], ids=str)
def test_a_field_without_a_value_asks_for_nothing(path: str, nothing: object) -> None:
    assert str(read(path, json.dumps({**MINIMAL[path], "wings": nothing}).encode())) == str(
        read(path, json.dumps(MINIMAL[path]).encode())
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1),
        ("best_of", 1),
        ("response_format", {"type": "text"}),
        ("response_format", {"type": "text", "json_schema": None}),
        ("store", False),
        ("service_tier", "auto"),
        ("tool_choice", "none"),
        ("parallel_tool_calls", True),
        ("modalities", ["text"]),
        ("echo", False),
        ("suffix", ""),
        ("stream_options", None),
        ("stop", None),
        ("logit_bias", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
def test_a_value_that_is_the_default_asks_for_nothing(path: str, name: str, value: object) -> None:
    plain = generation(path, json.dumps(MINIMAL[path]).encode())
    assert generation(path, json.dumps({**MINIMAL[path], name: value}).encode()) == plain


def test_null_in_a_part_and_in_the_options_of_a_stream_asks_for_nothing() -> None:
    part: dict[str, Any] = {"type": "text", "text": "", "cache_control": None, "annotations": []}
    options = {"include_usage": None, "include_obfuscation": False}
    assert chat({"role": "user", "content": [part]}, stream=True, stream_options=options) == [("user", "", "")]


SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": -1},
    "top_p": {"top_p": 0},
    "top_k": {"top_k": "all"},
    "seed": {"seed": 2**63},
    "stop": {"stop": ""},
    "stop[0]": {"stop": [5]},
    "presence_penalty": {"presence_penalty": 3},
    "frequency_penalty": {"frequency_penalty": -3},
    "repetition_penalty": {"repetition_penalty": 0},
    "min_tokens": {"min_tokens": 9, "max_tokens": 5},
    "stop_token_ids[0]": {"stop_token_ids": [-1]},
    "stop_token_ids": {"stop_token_ids": [1] * 65},
    "ignore_eos": {"ignore_eos": 1},
    "stream": {"stream": 1},
    "stream_options": {"stream_options": {"include_usage": True}},
    "stream_options.include_usage": {"stream": True, "stream_options": {"include_usage": 1}},
    "n": {"n": 2},
    "best_of": {"best_of": 2},
    "logit_bias": {"logit_bias": {"5": 1}},
    "response_format": {"response_format": {"type": "json_object"}},
}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    *((path, {"model": 5}, "model") for path in MINIMAL),
    *((path, {"wings": 2}, "wings") for path in MINIMAL),
    *((path, {"priority": "high"}, "priority") for path in (EMBEDDINGS, COMPLETIONS, CHATS)),
    *((path, {"user": 5}, "user") for path in (EMBEDDINGS, COMPLETIONS, CHATS)),
    *((path, {"tokenizer": 5}, "tokenizer") for path in (EMBEDDINGS, COMPLETIONS)),
    (EMBEDDINGS, {"input": None}, "input"),
    (EMBEDDINGS, {"input": ["a", 5]}, "input[1]"),
    (EMBEDDINGS, {"input": [["a"]]}, "input"),
    (EMBEDDINGS, {"input": [[["a"]]]}, "input"),
    (EMBEDDINGS, {"encoding_format": "hex"}, "encoding_format"),
    (EMBEDDINGS, {"dimensions": 0}, "dimensions"),
    (EMBEDDINGS, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    (EMBEDDINGS, {"input_type": "text"}, "input_type"),
    (EMBEDDINGS, {"normalize": 1}, "normalize"),
    (EMBEDDINGS, {"output_dtype": "hex"}, "output_dtype"),
    (EMBEDDINGS, {"output_dimension": 8, "dimensions": 8}, "output_dimension"),
    (EMBEDDINGS, {"add_special_tokens": False}, "add_special_tokens"),
    (EMBEDDINGS, {"padding": "max_length"}, "padding"),
    (EMBEDDINGS, {"embed_dtype": "fp8_e4m3"}, "embed_dtype"),
    (EMBEDDINGS, {"request_id": "a\nb"}, "request_id"),
    (EMBEDDINGS, {"priority": 1.5}, "priority"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": [["a"]]}, "prompt"),
    (COMPLETIONS, {"logprobs": 21}, "logprobs"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    (CHATS, {"max_completion_tokens": 0}, "max_completion_tokens"),
    (CHATS, {"logprobs": 1}, "logprobs"),
    (CHATS, {"top_logprobs": 2}, "top_logprobs"),
    (CHATS, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHATS, {"messages": None}, "messages"),
    (CHATS, {"messages": []}, "messages"),
    (CHATS, {"messages": [{"content": "a"}]}, "messages[0].role"),
    (CHATS, {"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    (CHATS, {"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content"),
    (CHATS, {"messages": [{**USER, "name": 5}]}, "messages[0].name"),
    (CHATS, {"messages": [{**USER, "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    (CHATS, {"tools": [{"type": "function"}]}, "tools"),
    *((path, fields, name) for path in (COMPLETIONS, CHATS) for name, fields in SAMPLING.items()),
    (COMPLETIONS, {"echo": True}, "echo"),
    (COMPLETIONS, {"suffix": "b"}, "suffix"),
]


@pytest.mark.parametrize(("path", "fields", "param"), WRONG, ids=str)
def test_the_field_at_fault_is_named_as_it_was_written(path: str, fields: dict[str, Any], param: str) -> None:
    body = json.dumps({**MINIMAL[path], **fields}).encode()
    with pytest.raises(InvalidRequest) as refused:
        read(path, body)
    error = error_of(Failure.of(refused.value))
    assert error["param"] == param
    assert "sampling." not in error["message"]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (r'["ok","\udc00x","fine"]', "input[1]"),
        (r'["ok","x\ud800"]', "input[1]"),
        (r'["ok","fine","\ud800\u0041"]', "input[2]"),
        (r'"\udfff"', "input"),
        (r'"a","user":"\ud83d"', "user"),
    ],
)
def test_half_a_character_is_named_with_its_place(value: str, place: str) -> None:
    with pytest.raises(FieldError) as refused:
        embeddings(f'{{"model":"m","input":{value}}}'.encode())
    assert refused.value.field == place
    assert str(refused.value).startswith(f"{place} holds half a character: \\ud")


def test_half_a_character_in_a_message_and_in_a_name() -> None:
    with pytest.raises(FieldError, match=r"^messages\[0\].content holds half a character: \\ud800 is one half"):
        generation(CHATS, rb'{"messages":[{"role":"user","content":"\ud800"}]}')
    with pytest.raises(FieldError, match=r"^the body holds half a character"):
        embeddings(rb'{"input":"a","\ud800":1}')


@pytest.mark.parametrize("value", [b'"\x9e"', b'"\\ud800"', b"[" * 5000 + b"]" * 5000, b"1e999", b"7" * 5000], ids=len)
def test_a_field_that_is_not_known_may_hold_what_cannot_be_decoded(value: bytes) -> None:
    with pytest.raises(FieldError, match=r"unknown field wings|half a character"):
        embeddings(b'{"input":"a","wings":%b}' % value)


def test_json_that_is_broken_elsewhere_is_no_half_character() -> None:
    with pytest.raises(FieldError, match="not JSON in UTF-8"):
        embeddings(rb'{"input":"\ud800"')


def test_a_byte_order_mark_is_no_fault() -> None:
    assert embeddings(b'\xef\xbb\xbf{"input":"a"}') == embeddings(b'{"input":"a"}')
    assert embeddings(b'\xef\xbb\xbf{"input":"a","user":null,"wings":null}') == embeddings(b'{"input":"a"}')
