"""Read the bodies of OpenAI's completions and chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from aggregator.request.request import Defaults
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.answer import AskedPriority, TextPart, priority_of
from aggregator.sources.http.embeddings import FOREIGN_IDS, IDS_SCHEMA, TEXT_SCHEMA, Revisions, check_nesting
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.wire.decode import MAX_TOKEN_IDS
from aggregator.sources.wire.fields import MAX_INT32
from aggregator.wings.generation.server import TASK
from aggregator.wings.generation.wire import MAX_LOGPROBS, MAX_MESSAGES, MAX_STOP_IDS, MAX_STOPS
from protos.generation.v1 import generation_pb2 as pb

_DEFAULT_COMPLETION_TOKENS = 16
"""The max_tokens of a completion that names none, as at OpenAI."""

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
    stop: str | Annotated[list[str], msgspec.Meta(max_length=MAX_STOPS)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    # Of other servers, and of this one.
    top_k: int | None = None
    min_tokens: _Count | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Annotated[list[_Count], msgspec.Meta(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    priority: AskedPriority = None


class CompletionRequest(Sampling, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Annotated[msgspec.Raw, msgspec.Meta(description="a text", extra_json_schema=_PROMPT_SCHEMA)]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tokenizer: str | None = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a chat."""

    remedies: ClassVar[Mapping[str, str]] = _REMEDIES

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None


class ChatRequest(Sampling, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: _Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None


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
