"""Requests for texts: bounded before they are parsed, read as they are meant, refused by name where not supported."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

from aggregator.errors import Code, InvalidRequest, RequestError, Undecodable
from aggregator.request.request import Defaults, Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.wire.message import parse
from aggregator.wings.generation import wire as generation
from aggregator.wings.generation.generation import generation_of
from aggregator.wings.generation.kind import GENERATION
from protos.embedding.v1 import embedding_pb2
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_source import FakeSource
from tests.support.fake_tokenizer import Letters

DEFAULTS = Defaults(FakeSource("kafka", refusable=False), "m", Priority.DEFAULT)


def parsed(**fields: Any) -> Request:
    message = pb.GenerateRequest(**fields)
    return parse(GENERATION, message, DEFAULTS, object(), received_s=10.0, wall_s=1000.0)


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parsed(**fields)
    return str(refused.value)


def test_a_prompt_token_ids_or_a_chat_is_what_it_goes_on_from() -> None:
    assert parsed(prompt="hello").inputs == ["hello"]
    assert parsed(token_ids=embedding_pb2.TokenIds(ids=[1, 2])).inputs == [b"\1\0\0\0\2\0\0\0"]
    chat = parsed(messages=pb.Messages(messages=[pb.Message(role="user", content="hi")]))
    assert [message.content for message in generation_of(chat).messages] == ["hi"]


@pytest.mark.parametrize(
    "fields", [{}, {"prompt": ""}, {"token_ids": embedding_pb2.TokenIds()}, {"messages": pb.Messages()}]
)
def test_without_anything_to_go_on_from_it_is_refused(fields: dict[str, Any]) -> None:
    assert "give a prompt, token ids or messages" in refusal(**fields)


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"n": 2}, "sampling.n"),
        ({"beam_width": 4}, "sampling.beam_width"),
        ({"grammar": "x"}, "sampling.grammar"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": inf}, "temperature"),
        ({"temperature": 2.5}, "temperature is 2.5: expected a number from 0 to 2"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": -3.0}, "frequency_penalty"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
        ({"stop": ["x"] * 17}, "sampling.stop"),
        ({"stop": [""]}, "sampling.stop"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids"),
        ({"stop_token_ids": range(65)}, "stop_token_ids takes at most 64"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_is_not_had_or_out_of_range_is_refused_by_name(sampling: dict[str, Any], named: str) -> None:
    assert named in refusal(prompt="x", sampling=pb.Sampling(**sampling))


def test_deadlines_are_counted_from_intake() -> None:
    message = pb.GenerateRequest(prompt="x")
    message.expire_time.FromMilliseconds(1_002_500)
    message.first_token_timeout.FromMilliseconds(500)
    request = parse(GENERATION, message, DEFAULTS, object(), received_s=10.0, wall_s=1000.0)
    assert (request.deadline_s, generation_of(request).first_token_by_s) == (12.5, 10.5)


@pytest.mark.parametrize("name", ["best_of", "guided_json", "response_format", "tools"])
def test_what_others_have_is_refused_by_name_in_json(name: str) -> None:
    for document in ({"prompt": "x", name: 1}, {"prompt": "x", "sampling": {name: 1}}):
        with pytest.raises(InvalidRequest, match=name):
            generation.decode_generate_json(json.dumps(document).encode())


@pytest.mark.parametrize("value", [b"\xff", b"[1]", b"{", b'{"prompt": 5}', b'{"xprompt": "x"}'])
def test_what_is_no_request_in_json_is_refused_without_its_words(value: bytes) -> None:
    with pytest.raises((Undecodable, InvalidRequest)) as refused:
        generation.decode_generate_json(value)
    assert "xprompt" not in str(refused.value)


def test_json_is_read_as_protobuf_is() -> None:
    document = {"prompt": "x", "sampling": {"maxTokens": 5, "stop": ["a"]}, "firstTokenTimeout": "2s"}
    message = generation.decode_generate_json(json.dumps(document).encode())
    assert (message.sampling.max_tokens, list(message.sampling.stop)) == (5, ["a"])


@pytest.mark.parametrize(
    "message",
    [
        pb.GenerateRequest(messages=pb.Messages(messages=[pb.Message()] * 20_000)),
        pb.GenerateRequest(prompt="x", sampling=pb.Sampling(stop=["a"] * 20_000)),
        pb.GenerateRequest(token_ids=embedding_pb2.TokenIds(ids=[1] * (1 << 21))),
    ],
)
def test_a_message_that_holds_too_much_is_refused_before_it_is_parsed(message: pb.GenerateRequest) -> None:
    with pytest.raises(InvalidRequest, match="more than"):
        generation.decode_generate(message.SerializeToString())


def test_bytes_that_are_no_message_are_refused() -> None:
    for data in (b"\xff\xff", b"\x0a\xff" * 40_000):
        with pytest.raises(RequestError):
            generation.decode_generate(data)


def test_an_answer_tells_usage_and_timings_at_its_end_only() -> None:
    request = parsed(prompt="x", request_id="r")
    text = generation_of(request)
    text.begin("rev", b"\1\0\0\0" * 3, Letters())
    text.started_s, text.first_token_s = 11.0, 12.0
    text.extend([65, 66], ())
    first = generation.response(request, text.read_new(), "", 12.0, done=False)
    assert first is not None
    assert (first.text, first.HasField("usage"), first.model_revision) == ("AB", False, "rev")
    assert generation.response(request, text.read_new(), "", 12.0, done=False) is None
    text.end(pb.FINISH_REASON_LENGTH)
    request.complete_input(0, text)
    last = generation.response(request, text.read_new(), "id", 13.0, done=True)
    assert last is not None
    assert (last.index, last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 3, 2)
    assert last.finish_reason == pb.FINISH_REASON_LENGTH
    seconds = [getattr(last.timings, name).ToMilliseconds() for name in ("queued", "first_token", "total")]
    assert seconds == [1000, 2000, 3000]
    assert last.reply_id == "id"


def test_a_text_that_failed_is_told_with_what_there_is_of_it() -> None:
    request = parsed(prompt="x")
    text = generation_of(request)
    text.begin("rev", b"\1\0\0\0", Letters())
    text.extend([65], ())
    request.fail(Failure(Code.DEADLINE_EXCEEDED, "late"))
    answer = generation.whole(request, "", 13.0)
    assert (answer.text, answer.status.code, answer.finish_reason) == ("A", 4, pb.FINISH_REASON_UNSPECIFIED)
    assert answer.status.message == "late"


@pytest.mark.parametrize(
    ("document", "words", "field"),
    [
        ('{"prompt": 5}', "the value of prompt is invalid", "prompt"),
        ('{"prompt": "a", "priority": "HIGH"}', "the value of priority is invalid: use one of PRIORITY_", "priority"),
        ('{"sampling": {"temperature": "secret"}}', "the value of sampling.temperature is", "sampling.temperature"),
        ('{"prompt": "a", "sampling": {"secret": 1}}', "sampling has no field like number 1", ""),
        ('{"prompt": "a", "secret": 1}', "it has no field like number 2", ""),
        ('{"messages": {"messages": [{"content": 5}]}}', "the value of messages.messages is", "messages.messages"),
        ('{"prompt": "secret", "messages": {}}', "two of its fields exclude each other", ""),
        ('{"prompt": "a", "tools": []}', "tools: not supported here; leave it out", "tools"),
    ],
)  # fmt: skip
def test_a_field_in_json_is_refused_by_its_name_without_its_value(document: str, words: str, field: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        generation.decode_generate_json(document.encode())
    assert refused.value.field == field
    assert "secret" not in str(refused.value)


def test_the_texts_of_a_chat_count_twice_as_the_template_needs_them_too() -> None:
    message = pb.GenerateRequest(messages=pb.Messages(messages=[pb.Message(role="user", content="a" * 10**6)]))
    request = parse(GENERATION, message, DEFAULTS, object(), received_s=10.0, wall_s=1000.0)
    assert 2 * 10**6 <= request.text_bytes < 2 * 10**6 + 1000
