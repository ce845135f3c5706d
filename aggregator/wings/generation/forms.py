"""OpenAI's completions and chat completions: JSON in, JSON or server-sent events out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import msgspec
from typing_extensions import override

from aggregator.request.request import Defaults, Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.answer import Answer, AskedPriority, TextPart, priority_of
from aggregator.sources.http.embeddings import FOREIGN_IDS, IDS_SCHEMA, TEXT_SCHEMA, Revisions, check_nesting
from aggregator.sources.http.errors import FieldError, error_of
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.wire.decode import MAX_TOKEN_IDS
from aggregator.sources.wire.fields import MAX_INT32
from aggregator.wings.generation.chat import Spelling
from aggregator.wings.generation.generation import generation_of
from aggregator.wings.generation.server import TASK
from protos.generation.v1 import generation_pb2 as pb

DONE = b"data: [DONE]\n\n"
_DEFAULT_COMPLETION_TOKENS = 16
"""The max_tokens of a completion that names none, as at OpenAI."""
_MAX_TOP_LOGPROBS = 20  # as at OpenAI
_MAX_MESSAGES, _MAX_STOPS, _MAX_STOP_IDS = 1024, 16, 128
"""The limits over gRPC."""
_FINISH: dict[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}

_ANSWER_BYTES, _TOKEN_BYTES = 1024, 8
"""Of a whole text's response, and of each token in it, about."""
_CONTINUES, _CONTINUATION = 0xC0, 0x80
"""Bits that tell a byte of UTF-8 that does not begin a character."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT32)]
"""At least 1: `max_tokens` 0 asks OpenAI's API for no token, but sets no limit in the protobuf message."""
_SEEDS = range(-(2**63), 2**63)


_PROMPT_SCHEMA = {"anyOf": [TEXT_SCHEMA, IDS_SCHEMA]}
"""A list of one text, or of one list of ids, is taken too."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a stream: whether a last event has the usage."""

    include_usage: bool | None = None


_FREE = "texts are not constrained; leave it out"
_NO_TOOLS = "no tools are called here; leave it out"
_REMEDIES = {
    "n": "n above 1 is not supported: send several requests",
    "best_of": "best_of above 1 is not supported: send several requests",
    "use_beam_search": "a request gets one text, sampled or greedy; leave it out",
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex", "structured_outputs"), _FREE),
    **dict.fromkeys(("tools", "tool_choice", "tool_calls", "tool_call_id", "functions", "function_call"), _NO_TOOLS),
    "audio": "texts alone are generated; leave it out",
    "echo": "the prompt is not sent back; leave it out",
    "input": "send a prompt, or messages to /v1/chat/completions",
    "logit_bias": "leave it out",
    "min_p": "set top_p or top_k, which limit the choice of tokens",
    "modalities": "texts alone are generated; leave it out",
    "response_format": 'texts are not constrained; leave it out, or send {"type": "text"}',
    "suffix": "a text is continued at its end alone; leave it out",
}
"""Of fields of other APIs, or their values, that are not supported."""


class Sampling(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that completions and chats share."""

    remedies: ClassVar[Mapping[str, str]] = _REMEDIES

    model: str | None = None
    max_tokens: _Tokens | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=_MAX_STOPS)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    # Of other servers, and of this one.
    top_k: int | None = None
    min_tokens: _Count | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Annotated[list[_Count], msgspec.Meta(max_length=_MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    priority: AskedPriority = None


class CompletionRequest(Sampling, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Annotated[msgspec.Raw, msgspec.Meta(description="a text", extra_json_schema=_PROMPT_SCHEMA)]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOP_LOGPROBS)] | None = None
    tokenizer: str | None = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a chat."""

    remedies: ClassVar[Mapping[str, str]] = _REMEDIES

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None


class ChatRequest(Sampling, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=_MAX_MESSAGES)]
    max_completion_tokens: _Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOP_LOGPROBS)] | None = None


_COPIED = (
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "min_tokens",
    "repetition_penalty",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_CHAT = msgspec.json.Decoder(ChatRequest)
_PROMPT = msgspec.json.Decoder(str | list[str | _Count | list[_Count]])


class GenerationReader:
    """Reads bodies."""

    def __init__(self, revisions: Revisions, *, trusts_token_ids: bool) -> None:
        self._revisions = revisions
        self._trusts_token_ids = trusts_token_ids

    def completion(
        self, data: bytes, defaults: Defaults, request_id: str
    ) -> tuple[pb.GenerateRequest, CompletionRequest]:
        """The message for a body, and the decoded body. Raises TokenbatchError."""
        asked = decode_body(_COMPLETION, data)
        message = _message(asked, request_id, defaults.priority)
        self._set_prompt(message, asked)
        if asked.max_tokens is None:
            message.sampling.max_tokens = _DEFAULT_COMPLETION_TOKENS
        if asked.logprobs is not None:
            message.sampling.logprobs = asked.logprobs
        if asked.tokenizer:
            message.model_revision = self._revisions.of_tokenizer(
                asked.tokenizer, message.model or defaults.model, TASK
            )
        return message, asked

    def chat(self, data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.GenerateRequest, ChatRequest]:
        """The same for a chat."""
        asked = decode_body(_CHAT, data)
        message = _message(asked, request_id, defaults.priority)
        if asked.max_completion_tokens is not None:
            message.sampling.max_tokens = asked.max_completion_tokens
        if asked.logprobs:
            message.sampling.logprobs = asked.top_logprobs or 0
        elif asked.top_logprobs:
            raise FieldError("top_logprobs needs logprobs: true", "top_logprobs")
        message.messages.messages.extend(
            pb.Message(role=each.role, content=_content(each, index), name=each.name or "")
            for index, each in enumerate(asked.messages)
        )
        return message, asked

    def _set_prompt(self, message: pb.GenerateRequest, asked: CompletionRequest) -> None:
        check_nesting(bytes(asked.prompt), "prompt")
        prompt = decode_body(_PROMPT, memoryview(asked.prompt), "prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        if not prompt:
            raise FieldError("the prompt is empty: send a text", "prompt")
        if isinstance(prompt, str):
            message.prompt = prompt
            return
        if len(prompt) > MAX_TOKEN_IDS:
            raise FieldError(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request", "prompt")
        ids = [each for each in prompt if isinstance(each, int)]
        if len(ids) < len(prompt):
            raise FieldError("expected one prompt: send several requests", "prompt")
        if not (self._trusts_token_ids or asked.tokenizer):
            raise FieldError(FOREIGN_IDS, "prompt")
        message.token_ids.ids.extend(ids)


def _message(asked: CompletionRequest | ChatRequest, request_id: str, priority: Priority) -> pb.GenerateRequest:
    """The request's common fields. Raises FieldError."""
    if asked.stream_options is not None and not asked.stream:
        raise FieldError("stream_options needs stream: true", "stream_options")
    if asked.seed is not None and asked.seed not in _SEEDS:
        raise FieldError(f"expected a whole number of 64 bits, got {asked.seed}", "seed")
    sampling = pb.Sampling()
    for name in _COPIED:
        if (value := getattr(asked, name)) is not None:
            setattr(sampling, name, value)
    if asked.top_k is not None and asked.top_k > 0:  # -1 and 0: all
        sampling.top_k = min(asked.top_k, MAX_INT32)
    sampling.stop.extend([asked.stop] if isinstance(asked.stop, str) else asked.stop or ())
    sampling.stop_token_ids.extend(asked.stop_token_ids or ())
    return pb.GenerateRequest(
        request_id=request_id,
        model=asked.model or "",
        sampling=sampling,
        priority=priority_of(asked.priority, priority),
        tenant=asked.user or "",
        final_only=not asked.stream,
    )


def _content(message: ChatMessage, index: int) -> str:
    """A message's text; an answer of the model may have none. Raises FieldError."""
    content = message.content
    if content is None and message.role != "assistant":
        raise FieldError("expected a text", f"messages[{index}].content")
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


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

    def whole(self) -> bytes:
        generated = self._generation
        _, text, _, logprobs = generated.read_new()
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
        _, text, token_ids, logprobs = generated.read_new()
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
        places = [[self._shown(entry) for entry in (each.token, *each.alternatives)] for each in logprobs]
        if places and not self._begun:
            self._begun = True
            places[0] = self._at_start(places[0], logprobs[0].token.token_id)
        return _chat_logprobs(places) if self._chat else self._completion_logprobs(places)

    def _shown(self, entry: pb.TokenLogprob) -> _Shown:
        return _Shown(entry.token_id, *self._spelling().piece(entry.token_id), entry.logprob)

    def _at_start(self, place: list[_Shown], token_id: int) -> list[_Shown]:
        """The first place, whose blank the detokenizer drops where no text is before it."""
        text = self._spelling().detokenizer(self._generation.prompt_ids).step(token_id)
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
    def size_bytes(self, request: Request) -> int:
        return _ANSWER_BYTES + _TOKEN_BYTES * generation_of(request).sampling.max_tokens

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
