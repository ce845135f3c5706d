"""Count the tokens of requests, hold them to the model's limits, and put their inputs in the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aggregator.admission.bounds import Admission
from aggregator.admission.held import Held, hold
from aggregator.admission.limits import Gate
from aggregator.admission.model_revision import Served
from aggregator.admission.tokenizers.token_counts import Counted, count_long, count_together, is_long, too_long
from aggregator.errors import Code
from aggregator.request import Failure, Request
from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.work_item import Entry, Query
from protos.embedding.v1 import embedding_pb2 as pb

_ID_BYTES = 4
_POISONED = Failure(Code.INTERNAL, "this input broke the engine before: it is not tried again")


async def enqueue(
    served: Served, admission: Admission, requests: Sequence[Request], gate: Gate, clock: Callable[[], float]
) -> list[Request]:
    """Queue every input of `requests`, all of them long or none.

    Returns the requests that are complete already, because nothing of them was queued.
    """
    counted = await _count(served, requests)
    complete: list[Request] = []
    queue = served.dispatcher.queue
    now_s = clock()
    held = Held(admission, queue, served.promise, now_s)
    lanes = served.dispatcher.lanes.values()
    for request, inputs, token_count in counted:
        if not request.remaining:
            if not request.given_up:  # while its tokens were counted
                complete.append(request)
            continue
        refusable = request.source.refusable
        if not request.admitted:
            if refusable:  # the others are paused before their bound
                refusal = gate.refusal(request, token_count, admission, lanes, now_s)
                if refusal is not None:
                    request.fail(Failure.of(refusal))
                    complete.append(request)
                    continue
            gate.charge(request, token_count, now_s)
            request.admitted = True
        places = _put(queue, request, inputs)
        if refusable:
            request.places = places
        hold(request, held, token_count)
    return complete


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
    taken: list[tuple[Request, list[tuple[int, bytes | None]]]] = []
    for request in requests:
        prompt = served.prompts[request.options.input_type]
        values: list[tuple[int, bytes | None]] = []
        for index, value in enumerate(request.inputs):
            if request.outcomes[index] is None:
                if isinstance(value, str):
                    texts.append(prompt + value)
                    values.append((index, None))
                else:
                    values.append((index, value))
        taken.append((request, values))
    found = await (count_long(served, requests[0], texts) if is_long(requests) else count_together(served, texts))
    slices = iter(found)
    counted: list[tuple[Request, list[tuple[int, bytes]], int]] = []
    for request, values in taken:
        inputs: list[tuple[int, bytes]] = []
        size_bytes = 0
        for index, given in values:
            token_ids = next(slices) if given is None else given  # even for those that were given up meanwhile
            if request.remaining:
                checked = _checked(served, request, token_ids)
                if isinstance(checked, bytes):
                    inputs.append((index, checked))
                    size_bytes += len(checked)
                else:
                    request.complete_input(index, checked)
        counted.append((request, inputs, size_bytes // _ID_BYTES))
    return counted


def _checked(served: Served, request: Request, counted: Counted) -> Counted:
    """The ids that go to the engine, or why none do."""
    if isinstance(counted, bytes) and len(counted) > served.description.max_input_tokens * _ID_BYTES:
        counted = _shorten(served, request, counted)
    if isinstance(counted, bytes) and served.dispatcher.retries.is_quarantined(counted):
        return _POISONED
    return counted


def _shorten(served: Served, request: Request, token_ids: bytes) -> Counted:
    """Cut an over-long input as the request asks, or say that it does not allow it."""
    truncate = request.options.truncate
    if truncate == pb.TRUNCATE_NONE:
        return too_long(served, f"{len(token_ids) // _ID_BYTES} tokens")
    limit = served.description.max_input_tokens
    return served.tokenizer.truncate_ids(token_ids, limit, keep_end=truncate == pb.TRUNCATE_START)
