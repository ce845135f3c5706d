"""OpenAI's completions and chats: how a text is written, whole or as events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aggregator.errors import Code
from aggregator.observability.metrics import Metrics
from aggregator.request.generated_text import GeneratedText, logprobs_of
from aggregator.request.request import Defaults, Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.load import Limits, Load, Room
from aggregator.sources.generation import parse
from aggregator.sources.http.embeddings import Revisions
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.generation import DONE, GenerationReader, HttpGenerationCall, Writer
from k8s.process.metrics_buffer import MetricsBuffer
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_source import GRPC

IDENTITY = Identity(Defaults(GRPC, "m", Priority.INTERACTIVE), None, None, ())
WORDS = {5: "the", 6: " cat", 7: " sat", 8: " é"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Words:
    """Each token is a word."""

    def step(self, token_id: int) -> str:
        return WORDS[token_id]


class NoModels(Revisions):
    """Nobody names a tokenizer."""

    def __init__(self) -> None: ...


def room() -> Room:
    return Load(Limits(), Metrics(MetricsBuffer())).enter(())


def begun(**fields: Any) -> tuple[Request, GeneratedText, Writer]:
    """The request for a body, with a prompt of two tokens, and its writer."""
    call = HttpGenerationCall(room(), "r")
    reader = GenerationReader(NoModels(), trusts_token_ids=False)
    read = reader.chat if "messages" in fields else reader.completion
    message = read(json.dumps(fields).encode(), IDENTITY, call)
    request = parse(message, IDENTITY.defaults, call, received_s=0.0, wall_s=0.0, deadline_s=60.0)
    assert request.generation is not None
    request.generation.begin("r1", bytes(8), Words())
    return request, request.generation, Writer(request, lambda _: Words())


def read(event: bytes) -> Any:
    return json.loads(event.removeprefix(b"data: "))


ALTERNATIVES = logprobs_of(
    3, [5, 5, 6, 6, 7, 5, 8, 8, 6], [-1.0, -1.0, -2.0, -3.0, -0.5, -1.5, -0.1, -0.1, -4], [1, 3, 1]
)
"""Of three tokens, each with two alternatives; of the first and the last one, one of these is the token itself."""


@pytest.mark.parametrize("asked", [{"prompt": "x"}, CHAT], ids=["completion", "chat"])
def test_no_new_tokens_are_refused_and_not_taken_for_no_limit(asked: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens") if asked is CHAT else ("max_tokens",):
        with pytest.raises(FieldError, match=">= 1") as error:
            begun(**asked, **{name: 0})
        assert error.value.field == name


def test_a_completion_shows_log_probabilities_by_token_with_offsets_into_the_text() -> None:
    _, generated, writer = begun(prompt="x", logprobs=2)
    generated.extend([5, 6, 8], ALTERNATIVES)
    generated.end(pb.FINISH_REASON_STOP)
    answer = json.loads(writer.whole())
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("the cat é", "stop")
    assert choice["logprobs"] == {
        "tokens": ["the", " cat", " é"],
        "token_logprobs": pytest.approx([-1.0, -3.0, -0.1]),
        "top_logprobs": [
            pytest.approx({"the": -1.0, " cat": -2.0}),
            pytest.approx({" sat": -0.5, "the": -1.5, " cat": -3.0}),
            pytest.approx({" é": -0.1, " cat": -4.0}),
        ],
        "text_offset": [0, 3, 7],
    }
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_a_chat_shows_log_probabilities_with_bytes_and_alternatives() -> None:
    _, generated, writer = begun(**CHAT, logprobs=True, top_logprobs=2)
    generated.extend([5, 6, 8], ALTERNATIVES)
    generated.end(pb.FINISH_REASON_LENGTH)
    content = json.loads(writer.whole())["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in content] == ["the", " cat", " é"]
    assert content[2]["bytes"] == list(" é".encode())
    assert [[each["token"] for each in one["top_logprobs"]] for one in content] == [
        ["the", " cat"],
        [" sat", "the"],
        [" é", " cat"],
    ]


def test_deltas_that_were_not_read_come_as_one_event() -> None:
    _, generated, writer = begun(prompt="x", stream=True, stream_options={"include_usage": True})
    generated.extend([5], ())
    assert [read(event)["choices"][0]["text"] for event in writer.events(done=False)] == ["the"]
    for token in (6, 7, 8):
        generated.extend([token], ())
    generated.end(pb.FINISH_REASON_STOP)
    rest, ending, usage, last = writer.events(done=True)
    assert read(rest)["choices"][0]["text"] == " cat sat é"
    assert (read(ending)["choices"][0]["text"], read(ending)["choices"][0]["finish_reason"]) == ("", "stop")
    assert (read(usage)["choices"], read(usage)["usage"]["completion_tokens"]) == ([], 4)
    assert {read(each)["usage"] for each in (rest, ending)} == {None}
    assert last == DONE


def test_a_stream_that_fails_after_its_first_event_ends_with_the_error() -> None:
    request, generated, writer = begun(**CHAT, stream=True)
    generated.extend([5], ())
    role, delta = writer.events(done=False)
    assert read(role)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert read(delta)["choices"][0]["delta"] == {"content": "the"}
    request.fail(Failure(Code.DEADLINE_EXCEEDED, "too late"))
    (error,) = writer.events(done=True)
    assert read(error) == {
        "error": {"message": "too late", "type": "api_error", "param": None, "code": "deadline_exceeded"}
    }
