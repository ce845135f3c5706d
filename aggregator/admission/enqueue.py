"""Count the tokens of requests, check the limits, and put their inputs in the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from aggregator.admission.bounds import Admission
from aggregator.admission.known_rows import Input
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.sequences import (
    UNCOUNTABLE,
    most_characters,
    too_long,
)
from aggregator.errors import Code
from aggregator.request.kind import Counted
from aggregator.request.request import Failure, Held, Request, Stage
from aggregator.request.vector import Vector
from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.work_item import ID_BYTES, Query
from aggregator.slow_lane import in_slow_lane
from aggregator.tokenizers.counting import CALL_CHARACTERS
from aggregator.tokenizers.tokenizer import TokenBatch
from protos.embedding.v1 import embedding_pb2 as pb

LONG_CHARACTERS = 1 << 14
"""A request with more characters is counted by itself, so that others do not wait for it."""
_LOG = logging.getLogger(__name__)
_FIRST = (0,)
_POISONED = Failure(
    Code.INTERNAL, "this input made the engine fail again and again: it is not tried again for some minutes"
)
_Waiting = tuple[Request, Sequence[int], int]
"""A request, the indexes of its inputs that have no outcome yet, and the number of texts to tokenize for them."""


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
    known = model_revision.known
    for request, counted, token_count in _counted(model_revision, waiting, found):
        if not request.remaining:
            if request.stage is not Stage.GIVEN_UP:  # while its tokens were counted
                complete.append(request)
            continue
        inputs, vectors = known.find(request, counted)
        known_tokens = sum(vector.token_count for _, vector in vectors) if vectors else 0
        refusable = request.source.refusable
        if request.stage is not Stage.ADMITTED:
            refusal = None
            if refusable:  # the others are paused before their bound
                refusal = limits.refusal(request, token_count, admission, dispatcher, now_s, known_tokens=known_tokens)
            if refusal is not None:
                request.fail(refusal)
                complete.append(request)
                continue
            limits.charge(request, token_count, now_s)
            request.stage = Stage.ADMITTED
        if vectors and _completes(request, vectors):
            complete.append(request)
            continue
        queries = _put(queue, request, inputs)
        if refusable:
            request.queries = queries
        extra = model_revision.usage.expected_tokens(request.details)
        request.hold(held, token_count - known_tokens + extra)
    known.seal(now_s)
    return complete


def _completes(request: Request, vectors: Sequence[tuple[int, Vector]]) -> bool:
    """Give inputs the vectors that are known; whether no other input is left."""
    for index, vector in vectors:
        request.complete_input(index, vector)
    return not request.remaining


def _put(queue: TokenQueue, request: Request, inputs: Sequence[Input]) -> list[Query]:
    queries: list[Query] = []
    deadline_s = request.kind.start_by_s(request)
    for index, sequence, token_count in inputs:
        query = Query(request, index, request.priority, request.tenant, request.received_s, deadline_s)
        queue.put(query, sequence, token_count)
        queries.append(query)
    return queries


async def _count(model_revision: ModelRevision, requests: Sequence[Request]) -> tuple[list[_Waiting], list[Counted]]:
    """The open inputs of each request, and the token ids of all texts that they need, in order."""
    texts: list[str] = []
    long_texts: Sequence[str] | None = None
    waiting: list[_Waiting] = []
    kind = requests[0].kind
    long = is_long(requests)
    for request in requests:
        outcomes = request.outcomes
        indexes = _FIRST if len(outcomes) == 1 else [i for i, found in enumerate(outcomes) if found is None]
        needed: Sequence[str] = ()
        if request.remaining and kind.texts_take_long(request):
            needed = await in_slow_lane(partial(kind.texts, model_revision, request, indexes))
        elif request.remaining:
            needed = kind.texts(model_revision, request, indexes)
        if long:
            long_texts = needed  # which may be joined only when they are counted
        else:
            texts += needed
        waiting.append((request, indexes, len(needed)))
    if long_texts is not None:
        return waiting, await count_long(model_revision, requests[0], long_texts)
    return waiting, await count_together(model_revision, texts)


def _counted(
    model_revision: ModelRevision, waiting: Sequence[_Waiting], found: Sequence[Counted]
) -> Iterator[tuple[Request, list[Input], int]]:
    """Each request with its sequences for the engine, and the sum of their tokens.

    An input above the model's limit is truncated, or fails.
    """
    taken = 0
    has_quarantined = model_revision.dispatcher.retries.has_quarantined
    for request, indexes, text_count in waiting:
        inputs: list[Input] = []
        tokens = 0
        counted = found[taken : taken + text_count]  # also of requests given up since
        taken += text_count
        if request.remaining:
            made = request.kind.make(model_revision, request, indexes, counted)
            for index, each in zip(indexes, made, strict=True):
                if isinstance(each, Failure):
                    request.complete_input(index, each)
                    continue
                sequence, token_count = each
                if has_quarantined and _is_quarantined(model_revision, request, sequence):
                    request.complete_input(index, _POISONED)
                    continue
                inputs.append((index, sequence, token_count))
                tokens += token_count
        yield request, inputs, tokens


def _is_quarantined(model_revision: ModelRevision, request: Request, sequence: bytes) -> bool:
    """Whether it is refused as proven poison; a redriven request is tried again."""
    retries = model_revision.dispatcher.retries
    if request.redriven:
        retries.end_quarantine(sequence)
        return False
    return retries.is_quarantined(sequence, request.received_s)


def split_long(requests: Sequence[Request]) -> tuple[list[list[Request]], list[Request]]:
    """The groups of requests that are counted together, and the requests that are counted by themselves."""
    portions: list[list[Request]] = []
    long: list[Request] = []
    room = 0
    for request in requests:
        characters = request.kind.characters(request)
        if characters > LONG_CHARACTERS:
            long.append(request)
            continue
        if characters > room or not portions:
            portions.append([])
            room = CALL_CHARACTERS
        portions[-1].append(request)
        room -= characters
    return portions, long


def is_long(requests: Sequence[Request]) -> bool:
    return len(requests) == 1 and requests[0].characters > LONG_CHARACTERS


async def count_together(model_revision: ModelRevision, texts: Sequence[str], *, long: bool = False) -> list[Counted]:
    """The ids of each text, in one call; after an error each text by itself, so that only the text at fault fails."""
    if not texts:
        return []
    try:
        return list(_slices(await model_revision.counting.count(texts, long=long)))
    except Exception as error:  # noqa: BLE001 - a tokenizer's own errors have no common type, and may quote the text
        _LOG.error("tokenizing failed", extra={"texts": len(texts), "error": type(error).__name__})
        if len(texts) == 1:
            return [UNCOUNTABLE]
    return [counted for text in texts for counted in await count_together(model_revision, [text], long=long)]


async def count_long(model_revision: ModelRevision, request: Request, texts: Sequence[str]) -> list[Counted]:
    """The ids of a long request's texts.

    Of a text with many times the characters that the model's limit usually has, the end that truncation keeps is
    tokenized; it is refused if it must not be truncated. They are counted in several calls: other requests get in
    between, and a cancelled request stops.
    """
    most = most_characters(model_revision)
    refused = None
    if request.options.truncate == pb.TRUNCATE_NONE:
        refused = too_long(model_revision, request, f"more than {most} characters")
    keeps_end = request.options.truncate == pb.TRUNCATE_START
    counted: list[Counted] = []
    call: list[str] = []
    room = CALL_CHARACTERS
    for text in texts:
        if len(text) > most:
            if refused is not None:
                counted += [*await count_together(model_revision, call, long=True), refused]
                call, room = [], CALL_CHARACTERS
                continue
            text = text[-most:] if keeps_end else text[:most]  # noqa: PLW2901 - the end that truncation keeps
        if call and len(text) > room:
            counted += await count_together(model_revision, call, long=True)
            call, room = [], CALL_CHARACTERS
        call.append(text)
        room -= len(text)
    return counted + await count_together(model_revision, call, long=True)


def _slices(counted: TokenBatch) -> Iterator[bytes]:
    data = counted.ids.tobytes()
    start = 0
    for length in counted.lengths.tolist():
        end = start + length * ID_BYTES
        yield data[start:end]
        start = end
