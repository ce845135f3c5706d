"""Answers with a generated text, whole or as server-sent events, in the forms of OpenAI's API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from typing_extensions import override

from aggregator.request.request import Failure, Request
from aggregator.sources.http.answer import Answer
from aggregator.sources.http.errors import error_of
from aggregator.wings.generation.chat import Spelling
from aggregator.wings.generation.forms import ChatRequest, CompletionRequest
from aggregator.wings.generation.generation import New, generation_of, writes_long
from protos.generation.v1 import generation_pb2 as pb

DONE = b"data: [DONE]\n\n"
_FINISH: dict[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}
_ANSWER_BYTES, _TOKEN_BYTES, _LOGPROB_BYTES = 1024, 8, 90
"""Of a whole text's response, of each token in it, and of each logarithm beside one, about."""
_CONTINUES, _CONTINUATION = 0xC0, 0x80
"""Bits that tell a byte of UTF-8 that does not begin a character."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A token of a place, as it is shown."""

    token_id: int
    name: str
    bytes: bytes
    logprob: float


class GenerationWriter:
    """Writes the response to a generation request, whole or as events."""

    def __init__(
        self,
        request: Request,
        asked: CompletionRequest | ChatRequest,
        spelling: Callable[[], Spelling],
    ) -> None:
        self._request = request
        self._generation = generation_of(request)
        self._spelling = spelling
        self._chat = isinstance(asked, ChatRequest)
        self._with_logprobs = generation_of(request).sampling.HasField("logprobs")
        options = asked.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        self._created = int(time.time())
        self._first = True
        self._characters = 0
        self._begun = False
        self._new: New | None = None

    def take(self) -> bool:
        """Take what is new, for the next `whole` or `events`; whether that takes long, and may run on a thread."""
        self._new = self._generation.read_new()
        return writes_long(self._generation, self._new[3])

    def _taken(self) -> New:
        new, self._new = self._new or self._generation.read_new(), None
        return new

    def whole(self) -> bytes:
        generated = self._generation
        _, text, _, logprobs = self._taken()
        shown = self._logprobs(logprobs)
        choice: dict[str, Any] = {"index": 0, "finish_reason": _FINISH[generated.finish_reason], "logprobs": shown}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        answer = self._around("chat.completion" if self._chat else "text_completion", [choice])
        return msgspec.json.encode({**answer, "usage": self._usage()})

    def events(self, *, done: bool) -> Iterator[bytes]:
        """The events for the new text; the last ones, with the outcome, if it is `done`."""
        generated = self._generation
        _, text, token_ids, logprobs = self._taken()
        if self._first and self._chat:
            yield self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        self._first = False
        if text or (token_ids and self._with_logprobs):
            choice: dict[str, Any] = {"index": 0, "finish_reason": None, "logprobs": self._logprobs(logprobs)}
            yield self._event([{**choice, **({"delta": {"content": text}} if self._chat else {"text": text})}])
        if not done:
            return
        if self._request.failure is not None:
            yield error_event(self._request.failure)
            return
        ending: dict[str, Any] = {"index": 0, "finish_reason": _FINISH[generated.finish_reason], "logprobs": None}
        yield self._event([{**ending, **({"delta": {}} if self._chat else {"text": ""})}])
        if self._with_usage:
            yield self._event([], self._usage())
        yield DONE

    def _event(self, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        answer = self._around("chat.completion.chunk" if self._chat else "text_completion", choices)
        if self._with_usage:
            answer["usage"] = usage
        return b"data: %b\n\n" % msgspec.json.encode(answer)

    def _around(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{self._request.request_id}",
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "system_fingerprint": self._generation.model_revision,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        prompt, new = self._generation.prompt_tokens, len(self._generation.token_ids)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    def _logprobs(self, logprobs: Sequence[pb.TokenLogprobs]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        places: list[list[_Shown]] = []
        if logprobs:
            spelling = self._spelling()
            places = [[_shown(entry, spelling) for entry in (each.token, *each.alternatives)] for each in logprobs]
            if not self._begun:
                self._begun = True
                places[0] = self._at_start(places[0], logprobs[0].token.token_id, spelling)
        return _chat_logprobs(places) if self._chat else self._completion_logprobs(places)

    def _at_start(self, place: list[_Shown], token_id: int, spelling: Spelling) -> list[_Shown]:
        """The first place, whose blank the detokenizer drops where no text is before it."""
        text = spelling.detokenizer(self._generation.prompt_ids).step(token_id)
        if text.startswith(" ") or not place[0].bytes.startswith(b" "):
            return place
        return [replace(each, name=each.name.removeprefix(" "), bytes=each.bytes.removeprefix(b" ")) for each in place]

    def _completion_logprobs(self, places: Sequence[Sequence[_Shown]]) -> dict[str, Any]:
        offsets: list[int] = []
        for own, *_ in places:
            begins_inside = own.bytes[:1] and own.bytes[0] & _CONTINUES == _CONTINUATION
            offsets.append(max(0, self._characters - bool(begins_inside)))
            self._characters += sum(byte & _CONTINUES != _CONTINUATION for byte in own.bytes)
        return {
            "tokens": [own.name for own, *_ in places],
            "token_logprobs": [own.logprob for own, *_ in places],
            "top_logprobs": [_by_name(place) for place in places],
            "text_offset": offsets,
        }


def _shown(entry: pb.TokenLogprob, spelling: Spelling) -> _Shown:
    return _Shown(entry.token_id, *spelling.piece(entry.token_id), entry.logprob)


class WholeText(Answer):
    """Answers with the whole text, where nobody waits for its begin."""

    def __init__(
        self,
        asked: CompletionRequest | ChatRequest,
        spelling_of: Callable[[Request], Callable[[], Spelling]],
    ) -> None:
        super().__init__("")
        self._asked = asked
        self._spelling_of = spelling_of

    @override
    def failure(self, request: Request) -> Failure | None:
        return request.failure

    @override
    def takes_long(self, request: Request) -> bool:
        generated = generation_of(request)
        return writes_long(generated, generated.logprobs)

    @override
    def size_bytes(self, request: Request) -> int:
        sampling = generation_of(request).sampling
        logprobs = 1 + sampling.logprobs if sampling.HasField("logprobs") else 0
        return _ANSWER_BYTES + (_TOKEN_BYTES + _LOGPROB_BYTES * logprobs) * sampling.max_tokens

    @override
    def tokens(self, request: Request) -> tuple[int, int]:
        generation = generation_of(request)
        return generation.prompt_tokens, len(generation.token_ids)

    @override
    def write(self, request: Request) -> bytes:
        return GenerationWriter(request, self._asked, self._spelling_of(request)).whole()


def _chat_logprobs(places: Sequence[Sequence[_Shown]]) -> dict[str, Any]:
    def written(each: _Shown) -> dict[str, Any]:
        return {"token": each.name, "logprob": each.logprob, "bytes": list(each.bytes)}

    content = [{**written(own), "top_logprobs": [written(each) for each in others]} for own, *others in places]
    return {"content": content, "refusal": None}


def _by_name(place: Sequence[_Shown]) -> dict[str, float]:
    """The alternatives, the token itself among them; of two with one name the second has its id."""
    own, *others = place
    named: dict[str, float] = {}
    for each in {each.token_id: each for each in (*others, own)}.values():
        named[f"token_id:{each.token_id}" if each.name in named else each.name] = each.logprob
    return named


def error_event(failure: Failure) -> bytes:
    """The event that ends a stream without an end: clients raise an error for it."""
    return b"data: %b\n\n" % msgspec.json.encode({"error": error_of(failure)})
