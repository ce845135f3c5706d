"""Count the tokens of requests, hold them to the model's limits, and put their inputs in the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from aggregator.core.admission import Admission
from aggregator.core.outlook import forecast
from aggregator.core.query import Entry, Query, Source
from aggregator.core.queue import TokenQueue
from aggregator.errors import Code
from aggregator.gate import Gate
from aggregator.ports import TokenBatch
from aggregator.request import Failure, Held, Request
from aggregator.served import Served
from protos.embedding.v1 import embedding_pb2 as pb

_ID_BYTES = 4
_LONG_CHARACTERS = 1 << 16
_LOG = logging.getLogger(__name__)
_POISONED = Failure(Code.INTERNAL, "this input broke the engine before: it is not tried again")
_UNCOUNTABLE = Failure(Code.INVALID_ARGUMENT, "the model's tokenizer cannot take this text")


def is_long(request: Request) -> bool:
    """Whether its tokens take so long to count that it must not go with others."""
    inputs = request.inputs
    return (len(inputs[0]) if len(inputs) == 1 else sum(map(len, inputs))) > _LONG_CHARACTERS


async def enqueue(
    served: Served, admission: Admission, requests: Sequence[Request], gate: Gate, clock: Callable[[], float]
) -> list[Request]:
    """Queue every input of `requests`, all of them long or none.

    Returns the requests that are settled already, because nothing of them was queued.
    """
    counted = await _count(served, requests)
    settled: list[Request] = []
    queue = served.dispatcher.queue
    now_s = clock()
    held = Held(admission, served.outlook, queue, served.promise, now_s)
    found = forecast(served.dispatcher.lanes.values(), now_s)
    for request, inputs, token_count in counted:
        if not request.remaining:
            if not request.given_up:  # while its tokens were counted
                settled.append(request)
            continue
        called = request.source is Source.GRPC
        if not request.admitted:
            if called:  # intake from Kafka stops before its bound instead
                refusal = gate.refusal(request, token_count, admission, served.outlook, found, now_s=now_s)
                if refusal is not None:
                    request.fail(Failure.of(refusal))
                    settled.append(request)
                    continue
            gate.charge(request, token_count, now_s)
            request.admitted = True
        places = _put(queue, request, inputs)
        if called:
            request.places = places
        request.hold(held, token_count)
    return settled


def _put(queue: TokenQueue, request: Request, inputs: Sequence[tuple[int, bytes]]) -> list[tuple[Query, Entry]]:
    places: list[tuple[Query, Entry]] = []
    for index, token_ids in inputs:
        query = Query(request, index, request.priority, request.tenant, request.received_s, request.deadline_s)
        places.append((query, queue.put(query, token_ids, len(token_ids) // _ID_BYTES)))
    return places


async def _count(served: Served, requests: Sequence[Request]) -> list[tuple[Request, list[tuple[int, bytes]], int]]:
    """Each request with the (index, token ids) of its inputs that have no outcome yet, and those inputs' tokens.

    What exceeds the model's limit is cut, or has its outcome.
    """
    texts: list[str] = []
    for request in requests:
        prompt = served.prompts[request.options.input_type]
        for index, value in enumerate(request.inputs):
            if isinstance(value, str) and request.outcomes[index] is None:
                texts.append(prompt + value if prompt else value)
    slices = await _token_ids(served, texts, long=is_long(requests[0]))
    counted: list[tuple[Request, list[tuple[int, bytes]], int]] = []
    limit_bytes = served.description.max_input_tokens * _ID_BYTES
    quarantine = served.dispatcher.retries
    for request in requests:
        inputs: list[tuple[int, bytes]] = []
        size_bytes = 0
        for index, value in enumerate(request.inputs):
            if request.outcomes[index] is None:
                token_ids = next(slices) if isinstance(value, str) else value
                if token_ids is None or len(token_ids) > limit_bytes or quarantine.is_quarantined(token_ids):
                    checked = await _checked(served, request, index, token_ids)
                else:
                    checked = token_ids
                if isinstance(checked, bytes):
                    inputs.append((index, checked))
                    size_bytes += len(checked)
                else:
                    request.settle_input(index, checked)
        counted.append((request, inputs, size_bytes // _ID_BYTES))
    return counted


async def _checked(served: Served, request: Request, index: int, token_ids: bytes | None) -> bytes | Failure:
    """The ids that go to the engine, or why none do."""
    if token_ids is None:
        return _UNCOUNTABLE
    if len(token_ids) // 4 > served.description.max_input_tokens:
        shorter = await _shorten(served, request, index, len(token_ids) // 4)
        if isinstance(shorter, Failure):
            return shorter
        token_ids = shorter
    return _POISONED if served.dispatcher.retries.is_quarantined(token_ids) else token_ids


async def _token_ids(served: Served, texts: Sequence[str], *, long: bool) -> Iterator[bytes | None]:
    """The ids of each text; None for one that the tokenizer cannot take, which must not harm the others."""
    if not texts:
        return iter(())
    try:
        return _slices(await served.counting.count(texts, long=long))
    except Exception:  # noqa: BLE001 - a tokenizer's own errors have no common type
        _LOG.exception("tokenizing failed", extra={"texts": len(texts)})
        if len(texts) == 1:
            return iter((None,))
    return iter([token_ids for text in texts for token_ids in await _token_ids(served, [text], long=long)])


def _slices(counted: TokenBatch) -> Iterator[bytes]:
    data = counted.ids.tobytes()
    start = 0
    for end in (np.cumsum(counted.lengths) * 4).tolist():
        yield data[start:end]
        start = end


async def _shorten(served: Served, request: Request, index: int, token_count: int) -> bytes | Failure:
    """Cut an over-long input as the request asks, or say that it does not allow it."""
    limit = served.description.max_input_tokens
    truncate = request.options.truncate
    if truncate == pb.TRUNCATE_NONE:
        return Failure(
            Code.OUT_OF_RANGE,
            f"{token_count} tokens: {served.description.model} takes {limit}; "
            "send less, or set truncate to TRUNCATE_END or TRUNCATE_START",
        )
    keep_end = truncate == pb.TRUNCATE_START
    value = request.inputs[index]
    if isinstance(value, bytes):
        return served.tokenizer.truncate_ids(value, limit, keep_end=keep_end)
    text = served.prompts[request.options.input_type] + value
    try:
        return await asyncio.to_thread(served.tokenizer.truncate, text, limit, keep_end=keep_end)
    except Exception:  # noqa: BLE001 - as in _token_ids
        _LOG.exception("truncating failed")
        return _UNCOUNTABLE
