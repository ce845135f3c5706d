"""Count the tokens of requests, check the limits, and put their inputs in the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import Code, InvalidRequest
from aggregator.request.generated_text import GeneratedText
from aggregator.request.request import Failure, Held, Request
from aggregator.scheduler.bounds import Admission
from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.work_item import Query
from aggregator.tokenizers.tokenizer import TokenBatch
from protos.embedding.v1 import embedding_pb2 as pb

LONG_CHARACTERS = 1 << 14
"""A request with more characters is counted by itself, so that others do not wait for it."""
_CALL_CHARACTERS = 1 << 16
"""Characters of one tokenizer call: short calls let others in between, and stop soon after a cancellation."""
_CHARACTERS_PER_TOKEN = 32
"""A text with more of them per token that the model takes is not tokenized whole."""
_LOG = logging.getLogger(__name__)
_UNCOUNTABLE = Failure(Code.INVALID_ARGUMENT, "the model's tokenizer cannot take this text")

Counted = bytes | Failure
"""The token ids of one text, int32 little endian, or why it has none."""
_ID_BYTES = 4
_FIRST = (0,)
_POISONED = Failure(
    Code.INTERNAL, "this input made the engine fail again and again: it is not tried again for some minutes"
)
_Waiting = tuple[Request, Sequence[str | bytes], Sequence[int]]
"""A request, its inputs, and the indexes of those that have no outcome yet."""


async def enqueue(
    model_revision: ModelRevision,
    admission: Admission,
    requests: Sequence[Request],
    limits: AdmissionLimits,
    clock: Callable[[], float],
) -> list[Request]:
    """Queue the inputs of `requests`: one long request, or several short ones.

    Returns the requests that are complete already: refused, or without a valid input.
    """
    waiting, found = await _count(model_revision, requests)
    complete: list[Request] = []
    dispatcher = model_revision.dispatcher
    queue = dispatcher.queue
    now_s = clock()
    held = Held(admission, queue, model_revision.slo, now_s)
    for request, inputs, token_count in _counted(model_revision, waiting, found):
        if not request.remaining:
            if not request.given_up:  # while its tokens were counted
                complete.append(request)
            continue
        refusable = request.source.refusable
        if not request.admitted:
            if refusable:  # the others are paused before their bound
                refusal = limits.refusal(request, token_count, admission, dispatcher, now_s)
                if refusal is not None:
                    request.fail(refusal)
                    complete.append(request)
                    continue
            limits.charge(request, token_count, now_s)
            request.admitted = True
        queries = _put(queue, request, inputs)
        if refusable:
            request.queries = queries
        generation = request.generation
        extra = 0 if generation is None else model_revision.generation_tokens(generation)
        request.hold(held, token_count + extra)
    return complete


def _put(queue: TokenQueue, request: Request, inputs: Sequence[tuple[int, bytes]]) -> list[Query]:
    queries: list[Query] = []
    for index, token_ids in inputs:
        deadline_s = request.deadline_s
        if request.generation is not None:
            deadline_s = min(deadline_s, request.generation.first_token_by_s)
        query = Query(request, index, request.priority, request.tenant, request.received_s, deadline_s)
        queue.put(query, token_ids, len(token_ids) // _ID_BYTES)
        queries.append(query)
    return queries


async def _count(model_revision: ModelRevision, requests: Sequence[Request]) -> tuple[list[_Waiting], list[Counted]]:
    """The open inputs of each request, and the token ids of all texts among them, in order."""
    texts: list[str] = []
    waiting: list[_Waiting] = []
    for request in requests:
        prompt, values = model_revision.prompts[request.options.input_type], request.inputs
        if request.generation is not None and request.generation.messages and request.remaining:
            values = _chat(model_revision, request, request.generation)
        indexes = _FIRST if len(values) == 1 else [i for i, found in enumerate(request.outcomes) if found is None]
        texts += [prompt + text for index in indexes if isinstance(text := values[index], str)]
        waiting.append((request, values, indexes))
    count = (
        count_long(model_revision, requests[0], texts) if is_long(requests) else count_together(model_revision, texts)
    )
    return waiting, await count


def _chat(model_revision: ModelRevision, request: Request, generation: GeneratedText) -> Sequence[str | bytes]:
    """The prompt that the model's chat template makes; a request with invalid messages fails."""
    try:
        return (model_revision.generation_tokenizer.prompt(generation.messages),)
    except InvalidRequest as error:
        request.fail(replace(Failure.of(error), field=generation.prompt_field))
        return (b"",)


def _prompt(model_revision: ModelRevision, request: Request, generation: GeneratedText, token_ids: bytes) -> Counted:
    if generation.messages:  # the template itself places special tokens
        token_ids = model_revision.generation_tokenizer.without_special(token_ids)
    description = model_revision.description
    size = description.vocabulary_size
    if token_ids and np.frombuffer(token_ids, np.int32).max() >= size:
        message = f"a token id is not below {size}, the size of the vocabulary"
        return Failure(Code.INVALID_ARGUMENT, message, field=generation.prompt_field)
    if any(token_id >= size for token_id in generation.sampling.stop_token_ids):
        field = "sampling.stop_token_ids"
        message = f"{field} holds an id that is not below {size}, the size of the vocabulary"
        return Failure(Code.INVALID_ARGUMENT, message, field=field)
    tokens = len(token_ids) // _ID_BYTES
    if not tokens:
        return Failure(Code.INVALID_ARGUMENT, "the prompt has no tokens", field=generation.prompt_field)
    if tokens >= description.max_input_tokens:
        return too_long(model_revision, request, f"{tokens} tokens")
    generation.begin(description.model_revision, token_ids, model_revision.generation_tokenizer.detokenizer(token_ids))
    return token_ids


def _counted(
    model_revision: ModelRevision, waiting: Sequence[_Waiting], found: Sequence[Counted]
) -> Iterator[tuple[Request, list[tuple[int, bytes]], int]]:
    """Each request with its inputs for the engine (index, token ids), and the sum of their tokens.

    An input above the model's limit is truncated, or fails.
    """
    slices = iter(found)
    for request, values, indexes in waiting:
        inputs: list[tuple[int, bytes]] = []
        size_bytes = 0
        for index in indexes:
            given = values[index]
            token_ids = given if isinstance(given, bytes) else next(slices)  # also of requests given up since
            if request.remaining:
                checked = _checked(model_revision, request, token_ids)
                if isinstance(checked, bytes):
                    inputs.append((index, checked))
                    size_bytes += len(checked)
                else:
                    request.complete_input(index, checked)
        yield request, inputs, size_bytes // _ID_BYTES


def _checked(model_revision: ModelRevision, request: Request, counted: Counted) -> Counted:
    """The token ids for the engine, or why the input fails."""
    if isinstance(counted, bytes) and request.generation is not None:
        counted = _prompt(model_revision, request, request.generation, counted)
    limit = model_revision.description.max_input_tokens
    if request.options.truncate_to:
        limit = min(limit, request.options.truncate_to)
    if isinstance(counted, bytes) and len(counted) > limit * _ID_BYTES:
        counted = _shorten(model_revision, request, counted, limit)
    if isinstance(counted, bytes):
        retries = model_revision.dispatcher.retries
        if request.redriven:
            retries.end_quarantine(counted)
        elif retries.is_quarantined(counted, request.received_s):
            return _POISONED
    return counted


def _shorten(model_revision: ModelRevision, request: Request, token_ids: bytes, limit: int) -> Counted:
    """Truncate an input that is too long, or fail it where the request does not allow that."""
    truncate = request.options.truncate
    if truncate == pb.TRUNCATE_NONE:
        return too_long(model_revision, request, f"{len(token_ids) // _ID_BYTES} tokens")
    return model_revision.tokenizer.truncate_ids(token_ids, limit, keep_end=truncate == pb.TRUNCATE_START)


def apart(requests: Sequence[Request]) -> tuple[list[list[Request]], list[Request]]:
    """The groups of requests that are counted together, and the requests that are counted by themselves."""
    portions: list[list[Request]] = []
    long: list[Request] = []
    room = 0
    for request in requests:
        characters = _characters(request)
        if characters > LONG_CHARACTERS:
            long.append(request)
            continue
        if characters > room or not portions:
            portions.append([])
            room = _CALL_CHARACTERS
        portions[-1].append(request)
        room -= characters
    return portions, long


def _characters(request: Request) -> int:
    inputs = request.inputs
    return len(inputs[0]) if len(inputs) == 1 else sum(map(len, inputs))


def is_long(requests: Sequence[Request]) -> bool:
    return len(requests) == 1 and _characters(requests[0]) > LONG_CHARACTERS


async def count_together(model_revision: ModelRevision, texts: Sequence[str], *, long: bool = False) -> list[Counted]:
    """The ids of each text, in one call; after an error each text by itself, so that only the text at fault fails."""
    if not texts:
        return []
    try:
        return list(_slices(await model_revision.counting.count(texts, long=long)))
    except Exception as error:  # noqa: BLE001 - a tokenizer's own errors have no common type, and may quote the text
        _LOG.error("tokenizing failed", extra={"texts": len(texts), "error": type(error).__name__})
        if len(texts) == 1:
            return [_UNCOUNTABLE]
    return [counted for text in texts for counted in await count_together(model_revision, [text], long=long)]


async def count_long(model_revision: ModelRevision, request: Request, texts: Sequence[str]) -> list[Counted]:
    """The ids of a long request's texts.

    Of a text with many times the characters that the model's limit usually has, the end that truncation keeps is
    tokenized; it is refused if it must not be truncated.
    """
    most = max(_CHARACTERS_PER_TOKEN * model_revision.description.max_input_tokens, _CALL_CHARACTERS)
    truncate = request.options.truncate
    if truncate == pb.TRUNCATE_NONE:
        refused = too_long(model_revision, request, f"more than {most} characters")
        counts = iter(await _count_in_calls(model_revision, [text for text in texts if len(text) <= most]))
        return [next(counts) if len(text) <= most else refused for text in texts]
    ends = [text[-most:] if truncate == pb.TRUNCATE_START else text[:most] for text in texts]
    return await _count_in_calls(model_revision, ends)


async def _count_in_calls(model_revision: ModelRevision, texts: Sequence[str]) -> list[Counted]:
    """Count in several calls: other requests get in between, and a cancelled request stops."""
    counted: list[Counted] = []
    call: list[str] = []
    room = _CALL_CHARACTERS
    for text in texts:
        if call and len(text) > room:
            counted += await count_together(model_revision, call, long=True)
            call, room = [], _CALL_CHARACTERS
        call.append(text)
        room -= len(text)
    return counted + await count_together(model_revision, call, long=True)


def too_long(model_revision: ModelRevision, request: Request, found: str) -> Failure:
    """The failure for an input that is too long; `found`: its length."""
    description = model_revision.description
    remedy = (
        "send less, or set truncate to TRUNCATE_END or TRUNCATE_START" if request.generation is None else "send less"
    )
    taken = f"{description.max_input_tokens} tokens" + ", those of the text included" * (request.generation is not None)
    field = "" if request.generation is None else request.generation.prompt_field
    return Failure(Code.OUT_OF_RANGE, f"{found}: {description.model} takes {taken}; {remedy}", field=field)


def _slices(counted: TokenBatch) -> Iterator[bytes]:
    data = counted.ids.tobytes()
    start = 0
    for length in counted.lengths.tolist():
        end = start + length * _ID_BYTES
        yield data[start:end]
        start = end
