"""OpenAI's completions and chats: how a text is written, whole or as events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from aggregator.errors import Code
from aggregator.request.request import Defaults, Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.errors import FieldError
from aggregator.sources.wire.message import parse
from aggregator.tokenizers.tokenizer import Tokenizer
from aggregator.wings.generation.chat import Spelling
from aggregator.wings.generation.forms import GenerationReader
from aggregator.wings.generation.generation import Generation, generation_of, logprobs_of
from aggregator.wings.generation.http import HttpGenerationCall
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.writing import DONE, GenerationWriter, WholeText
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_source import GRPC
from tests.support.fake_tokenizer import Pieces
from tests.support.http_bodies import AnyRevision, room

DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE)
WORDS = Pieces({5: "the", 6: " cat", 7: " sat", 8: " é", 9: "the"}.__getitem__)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def begun(tokenizer: Tokenizer | None = None, /, **fields: Any) -> tuple[Request, Generation, GenerationWriter]:
    """The request for a body, with a prompt of two tokens, and its writer."""
    reader = GenerationReader(AnyRevision(), trusts_token_ids=False)
    read = reader.chat if "messages" in fields else reader.completion
    message, asked = read(json.dumps(fields).encode(), DEFAULTS, "r")
    call = HttpGenerationCall(room(), asked)
    request = parse(GENERATION, message, DEFAULTS, call, received_s=0.0, wall_s=0.0, deadline_s=60.0)
    detokenizer = WORDS if tokenizer is None else tokenizer.detokenizer(bytes(8))
    generation_of(request).begin("r1", bytes(8), detokenizer)
    return (
        request,
        generation_of(request),
        GenerationWriter(request, asked, lambda: Spelling(tokenizer) if tokenizer is not None else cast("Any", WORDS)),
    )


def read(event: bytes) -> Any:
    return json.loads(event.removeprefix(b"data: "))


ALTERNATIVES = logprobs_of(
    3, [5, 5, 6, 6, 7, 5, 8, 8, 6], [-1.0, -1.0, -2.0, -3.0, -0.5, -1.5, -0.1, -0.1, -4], [1, 3, 1]
)
"""Of three tokens, each with two alternatives; of the first and the last one, one of these is the token itself."""


@pytest.mark.parametrize("asked", [{"prompt": "x"}, CHAT], ids=["completion", "chat"])
def test_no_new_tokens_are_refused_and_not_taken_for_no_limit(asked: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens") if asked is CHAT else ("max_tokens",):
        with pytest.raises(FieldError, match="a whole number from 1 to") as error:
            begun(**asked, **{name: 0})
        assert error.value.field == name


def test_a_completion_shows_log_probabilities_by_token_with_text_offsets() -> None:
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


@pytest.mark.parametrize("asked", [{"prompt": "x"}, CHAT], ids=["completion", "chat"])
def test_a_whole_text_is_written_as_for_a_call_that_waits_for_it(asked: dict[str, Any]) -> None:
    request, generated, _ = begun(**asked, max_tokens=5)
    call = request.origin
    assert isinstance(call, HttpGenerationCall)
    answer = WholeText(call.asked, lambda _: lambda: cast("Any", WORDS))
    generated.extend([5, 6], ())
    generated.end(pb.FINISH_REASON_STOP)
    assert answer.failure(request) is None
    written = json.loads(answer.write(request))
    choice = written["choices"][0]
    assert (choice["message"]["content"] if asked is CHAT else choice["text"]) == "the cat"
    assert (written["usage"]["total_tokens"], answer.content_type) == (4, "application/json")
    assert answer.size_bytes(request) > len(answer.write(request))
    request.fail(Failure(Code.UNAVAILABLE, "gone"))
    assert answer.failure(request) == Failure(Code.UNAVAILABLE, "gone")


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


SAMPLES = ["the 🦊 is here", "Überraschung 東京 👩‍👩‍👧 x", " 🦊🦊", "a\u0301 é\n\tb"]


def byte_level() -> Reference:
    """A byte-level BPE, as GPT-2 and Llama 3 have it: most characters that are not ASCII are several tokens."""
    tokenizer = Reference(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the fox is here in the den"] * 3, trainer)
    return tokenizer


def sentence_piece() -> Reference:
    """As Llama 2 has it: blanks are a character of their own, and what is not in the vocabulary is bytes."""
    words = ["<|end|>", "▁", "▁the", "▁is", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [chr(code) for code in range(0x21, 0x7F)]
    tokenizer = Reference(
        models.Unigram([(word, -1.0 if "▁" in word else -5.0) for word in words], unk_id=1, byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.fixture(params=[byte_level, sentence_piece])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    made: Reference = request.param()
    made.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer(tmp_path)


def shown(tokenizer: Tokenizer, ids: list[int], before: str = "", **asked: Any) -> tuple[str, Any]:
    """The text of these tokens and the one that ends it, behind the text `before`, and their log probabilities."""
    _, generated, writer = begun(tokenizer, **asked)
    prompt = tokenizer.count([before]).ids.tobytes() if before else bytes(8)
    generated.begin("r1", prompt, tokenizer.detokenizer(prompt))
    tokens = [each for token in (*ids, 0) for each in (token, 5)]
    generated.extend([*ids, 0], logprobs_of(2, tokens, [-1.0] * len(tokens), [1] * (len(ids) + 1)), 1)
    generated.end(pb.FINISH_REASON_STOP)
    (choice,) = json.loads(writer.whole())["choices"]
    return choice["message"]["content"] if "message" in choice else choice["text"], choice["logprobs"]


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("before", ["", "in"])
def test_the_bytes_of_tokens_join_to_the_text(real: Tokenizer, text: str, before: str) -> None:
    ids = real.count([text]).ids.tolist()
    assert len(ids) > len(text) / 2
    written, logprobs = shown(real, ids, before, **CHAT, logprobs=True, top_logprobs=1)
    content = logprobs["content"]
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == written
    assert content[-1]["token"] == "<|end|>"
    assert all(each["bytes"] for each in content[1:-1])


@pytest.mark.parametrize("text", SAMPLES)
def test_offsets_are_where_a_token_or_the_character_it_is_part_of_begins(real: Tokenizer, text: str) -> None:
    ids = real.count([text]).ids.tolist()
    written, logprobs = shown(real, ids, prompt="x", logprobs=1)
    tokens, offsets = logprobs["tokens"], logprobs["text_offset"]
    assert offsets[-1] == len(written)
    assert tokens[-1] == "<|end|>"
    part = "bytes:"
    assert any(token.startswith(part) for token in tokens)
    for token, offset in zip(tokens[:-1], offsets, strict=False):
        if token.startswith(part):
            first = bytes.fromhex(token.removeprefix(part).replace("\\x", ""))
            assert first[:1] in written[offset].encode()
        else:
            assert written[offset:].startswith(token)
    assert all(len(top) == len({token, *top}) for token, top in zip(tokens, logprobs["top_logprobs"], strict=True))


def test_alternatives_with_one_text_are_told_apart() -> None:
    _, generated, writer = begun(prompt="x", logprobs=2)
    generated.extend([5], logprobs_of(3, [5, 9, 6], [-1.0, -2.0, -3.0], [1]))
    generated.end(pb.FINISH_REASON_STOP)
    (choice,) = json.loads(writer.whole())["choices"]
    assert choice["logprobs"]["top_logprobs"] == [pytest.approx({"the": -2.0, " cat": -3.0, "token_id:5": -1.0})]


def with_logprobs(tokens: int, alternatives: int) -> tuple[Request, Generation, GenerationWriter]:
    """A chat answer of `tokens` tokens, each with its most likely alternatives."""
    request, generation, writer = begun(**CHAT, logprobs=True, top_logprobs=alternatives, max_tokens=tokens)
    grow(generation, tokens, alternatives)
    return request, generation, writer


def grow(generation: Generation, tokens: int, alternatives: int) -> None:
    width = 1 + alternatives
    generation.extend([6] * tokens, logprobs_of(width, [6] * tokens * width, [-1.5] * tokens * width, [1] * tokens))


@pytest.mark.parametrize(("tokens", "alternatives", "is_long"), [(6, 20, False), (7, 20, True), (64, 1, False)])
def test_many_logarithms_are_written_on_a_thread(tokens: int, alternatives: int, is_long: bool) -> None:
    request, generation, writer = with_logprobs(tokens, alternatives)
    assert writer.take() is is_long
    generation.end(pb.FINISH_REASON_LENGTH)
    call = request.origin
    assert isinstance(call, HttpGenerationCall)
    whole = WholeText(call.asked, lambda _: lambda: cast("Any", WORDS))
    assert whole.takes_long(request) is is_long


def test_what_comes_while_an_event_is_written_is_in_the_next_one() -> None:
    _, generation, writer = with_logprobs(2, 3)
    writer.take()
    grow(generation, 1, 3)
    _, first = writer.events(done=False)
    (second,) = writer.events(done=False)
    texts = [read(each)["choices"][0] for each in (first, second)]
    assert [each["delta"]["content"] for each in texts] == [" cat cat", " cat"]
    assert [len(each["logprobs"]["content"]) for each in texts] == [2, 1]


def test_a_whole_text_with_logarithms_is_no_larger_than_was_told() -> None:
    request, generation, writer = with_logprobs(50, 5)
    generation.end(pb.FINISH_REASON_LENGTH)
    call = request.origin
    assert isinstance(call, HttpGenerationCall)
    told = WholeText(call.asked, lambda _: lambda: cast("Any", WORDS)).size_bytes(request)
    assert told / 2 < len(writer.whole()) < told
