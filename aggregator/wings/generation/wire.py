"""Parse generation requests and build their responses; what all tasks share is in `message` and `encode`."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from math import inf

from aggregator.errors import InvalidRequest
from aggregator.request.kind import Parts
from aggregator.request.request import Options, Request
from aggregator.sources.wire.decode import MAX_TOKEN_IDS, SMALL_BYTES
from aggregator.sources.wire.encode import fill_status
from aggregator.sources.wire.fields import BYTES, MAX_INT32, count_token_ids, fields
from aggregator.sources.wire.message import decode_checked, fill_json, json_object
from aggregator.wings.generation.generation import Generation, New, generation_of
from protos.generation.v1 import generation_pb2 as pb

MAX_MESSAGES = 1024  # a chat's turns
MAX_STOPS, _MAX_STOP_CHARACTERS = 16, 1024
MAX_STOP_IDS = 64  # a runner takes 128, those included that end a text of its model
MAX_LOGPROBS = 20  # as OpenAI has it
_MAX_FIELDS = 4 * MAX_MESSAGES  # a message has a role, a text and little else
_NO_OPTIONS = Options()
_MESSAGES, _TOKEN_IDS = pb.GenerateRequest.MESSAGES_FIELD_NUMBER, pb.GenerateRequest.TOKEN_IDS_FIELD_NUMBER
_SAMPLING = pb.GenerateRequest.SAMPLING_FIELD_NUMBER
_MOST_PENALTY = _MOST_TEMPERATURE = 2.0  # as vLLM and OpenAI have it
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0.0 <= value <= _MOST_TEMPERATURE, "a number from 0 to 2"),
    "top_p": (lambda value: 0.0 < value <= 1.0, "a number above 0, at most 1"),
    "top_k": (lambda value: value <= MAX_INT32, f"a whole number from 0 to {MAX_INT32}"),
    "repetition_penalty": (lambda value: 0.0 < value < math.inf, "a number above 0"),
    "presence_penalty": (lambda value: -_MOST_PENALTY <= value <= _MOST_PENALTY, "a number from -2 to 2"),
    "frequency_penalty": (lambda value: -_MOST_PENALTY <= value <= _MOST_PENALTY, "a number from -2 to 2"),
    "logprobs": (lambda value: value <= MAX_LOGPROBS, f"a whole number from 0 to {MAX_LOGPROBS}"),
}
"""The values that a parameter takes, and the same in words."""
_NEVER_0 = "top_p", "repetition_penalty"
_UNSUPPORTED = "n", "beam_width", "grammar"
_OTHER_APIS = frozenset(
    {"best_of", "use_beam_search", "length_penalty", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
    | {"structured_outputs", "response_format", "tools", "logit_bias", "min_p", "bad_words", "prompt_logprobs"}
)
"""Parameters of other APIs that are not supported here."""


def check(data: bytes) -> None:
    """Raises InvalidRequest for a message with too many fields or ids, DecodeError for bytes that are not protobuf."""
    if len(data) <= SMALL_BYTES:
        return
    walked = token_ids = 0
    for number, wire_type, start, end in fields(data, 0, len(data)):
        walked += 1
        if wire_type == BYTES and number == _TOKEN_IDS:
            token_ids += sum(
                count_token_ids(data, part_start, part_end)
                for _, part_type, part_start, part_end in fields(data, start, end)
                if part_type == BYTES
            )
        elif wire_type == BYTES and number in {_MESSAGES, _SAMPLING}:
            for _ in fields(data, start, end):
                walked += 1
                if walked > _MAX_FIELDS:
                    break
        if token_ids > MAX_TOKEN_IDS:
            raise InvalidRequest(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request")
        if walked > _MAX_FIELDS:
            raise InvalidRequest(f"the message holds more than {_MAX_FIELDS} fields: at most {MAX_MESSAGES} messages")


def decode_generate(data: bytes) -> pb.GenerateRequest:
    """Decode a message. Raises InvalidRequest."""
    return decode_checked(pb.GenerateRequest, data, check)


def decode_generate_json(data: bytes) -> pb.GenerateRequest:
    """Decode a message in JSON. Raises InvalidRequest or Undecodable."""
    if len(data) > SMALL_BYTES and data.count(b"{") + data.count(b"[") > _MAX_FIELDS:
        raise InvalidRequest(f"the value holds more than {_MAX_FIELDS} objects: at most {MAX_MESSAGES} messages")
    document = json_object(data)
    given = document.get("sampling")
    unknown = _OTHER_APIS & {*document, *(given if isinstance(given, dict) else ())}
    if unknown:
        raise InvalidRequest(f"{', '.join(sorted(unknown))}: not supported here; leave it out", min(unknown))
    return fill_json(pb.GenerateRequest(), document)


def parts(message: pb.GenerateRequest, received_s: float) -> Parts:
    """The prompt of a message, and its generation. Raises InvalidRequest."""
    _check_sampling(message.sampling)
    first_token_by_s = inf
    if message.HasField("first_token_timeout"):
        timeout = message.first_token_timeout
        first_token_by_s = received_s + timeout.seconds + timeout.nanos * 1e-9
    generation = Generation(
        message.sampling,
        tuple(message.messages.messages),
        include_token_ids=message.include_token_ids,
        final_only=message.final_only,
        first_token_by_s=first_token_by_s,
    )
    return [_input(message)], [None], _NO_OPTIONS, generation


def _input(message: pb.GenerateRequest) -> str | bytes:
    """The prompt's text or packed ids; for a chat, the contents, by which its length is estimated."""
    match message.WhichOneof("input"):
        case "prompt" if message.prompt:
            return message.prompt
        case "token_ids" if message.token_ids.ids:
            ids = message.token_ids.ids
            if max(ids) > MAX_INT32:
                raise InvalidRequest("a token id does not fit 31 bits", "token_ids")
            return struct.pack(f"<{len(ids)}i", *ids)
        case "messages" if message.messages.messages:
            if len(message.messages.messages) > MAX_MESSAGES:
                count = len(message.messages.messages)
                raise InvalidRequest(f"{count} messages: at most {MAX_MESSAGES} are taken", "messages")
            return "\n".join(each.content for each in message.messages.messages)
        case _:
            raise InvalidRequest("the request has no input: give a prompt, token ids or messages")


def _check_sampling(sampling: pb.Sampling) -> None:
    """Raises InvalidRequest for unsupported or invalid parameters."""
    for name in _UNSUPPORTED:
        value = getattr(sampling, name)
        if value and not (name == "n" and value == 1):
            raise _refusal(name, "is not supported: a request gets one text, sampled or greedy; leave it out")
    for name, (fits, words) in _RANGES.items():
        value = getattr(sampling, name)
        if (value or (name in _NEVER_0 and sampling.HasField(name))) and not fits(value):
            raise _refusal(name, f"is {value:g}: expected {words}")
    if sampling.max_tokens and sampling.min_tokens > sampling.max_tokens:
        raise _refusal("min_tokens", "is more than max_tokens: raise that, or lower this")
    if len(sampling.stop) > MAX_STOPS or any(not 0 < len(each) <= _MAX_STOP_CHARACTERS for each in sampling.stop):
        raise _refusal("stop", f"takes at most {MAX_STOPS} texts, each of 1 to {_MAX_STOP_CHARACTERS} characters")
    if len(sampling.stop_token_ids) > MAX_STOP_IDS or any(each > MAX_INT32 for each in sampling.stop_token_ids):
        raise _refusal("stop_token_ids", f"takes at most {MAX_STOP_IDS}, each of 31 bits")


def _refusal(name: str, why: str) -> InvalidRequest:
    field = f"sampling.{name}"
    return InvalidRequest(f"{field} {why}", field)


def response(request: Request, new: New, reply_id: str, now_s: float, *, done: bool) -> pb.GenerateResponse | None:
    """The delta of a request for what is new, the last one if it is `done`; None if nothing is.

    Log probabilities take long to write: where `writes_long` says so, call it on a thread.
    """
    generation = generation_of(request)
    index, text, token_ids, logprobs = new
    if not (done or text or token_ids):
        return None
    answer = pb.GenerateResponse(
        request_id=request.request_id,
        model=request.model,
        model_revision=generation.model_revision,
        index=index,
        text=text,
        token_ids=token_ids if generation.include_token_ids else (),
        logprobs=logprobs,
        attempt=generation.attempts,
        reply_id=reply_id,
        replay=request.replay,
    )
    if done:
        _fill_end(answer, request, generation, now_s)
    return answer


def whole(request: Request, reply_id: str, now_s: float) -> pb.GenerateResponse:
    """The one response of a sender that reads no deltas."""
    generation = generation_of(request)
    generation.restart_stream()
    answer = response(request, generation.read_new(), reply_id, now_s, done=True)
    assert answer is not None, "A completed request has no answer. This is a bug."
    return answer


def _fill_end(answer: pb.GenerateResponse, request: Request, generation: Generation, now_s: float) -> None:
    failure = request.failure
    if failure is not None:
        fill_status(answer.status, failure)
    else:
        answer.status.SetInParent()
        answer.finish_reason = generation.finish_reason  # type: ignore[assignment]
        answer.stop = generation.stop
    answer.usage.prompt_tokens = generation.prompt_tokens
    answer.usage.completion_tokens = len(generation.token_ids)
    for name, at_s in (("queued", generation.started_s), ("first_token", generation.first_token_s), ("total", now_s)):
        if at_s < inf:
            getattr(answer.timings, name).FromNanoseconds(int(max(0.0, at_s - request.received_s) * 1e9))
