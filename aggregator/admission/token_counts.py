"""Count the tokens of texts: short requests together, of a long text only as much as the model can use."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import Code
from aggregator.request.request import Failure, Request
from aggregator.tokenizers.tokenizer import TokenBatch
from protos.embedding.v1 import embedding_pb2 as pb

LONG_CHARACTERS = 1 << 14
"""A request with more characters is counted by itself, so that others do not wait for it."""
_CALL_CHARACTERS = 1 << 16
"""Characters of one tokenizer call: short calls let others in between, and stop soon after a cancellation."""
_CHARACTERS_PER_TOKEN = 32
"""A text with more of them per token that the model takes is not tokenized whole."""
_ID_BYTES = 4
_LOG = logging.getLogger(__name__)
_UNCOUNTABLE = Failure(Code.INVALID_ARGUMENT, "the model's tokenizer cannot take this text")

Counted = bytes | Failure
"""The token ids of one text, int32 little endian, or why it has none."""


def apart(requests: Sequence[Request]) -> tuple[list[list[Request]], list[Request]]:
    """The groups of requests that are counted together, and the requests that are counted by themselves."""
    portions: list[list[Request]] = []
    long: list[Request] = []
    room = 0  # pragma: no mutate: the first request opens a portion whatever the room
    for request in requests:
        inputs = request.inputs
        characters = len(inputs[0]) if len(inputs) == 1 else sum(map(len, inputs))  # pragma: no mutate
        if characters > LONG_CHARACTERS:
            long.append(request)
            continue
        if characters > room or not portions:
            portions.append([])
            room = _CALL_CHARACTERS
        portions[-1].append(request)
        room -= characters
    return portions, long


def is_long(requests: Sequence[Request]) -> bool:
    return len(requests) == 1 and bool(apart(requests)[1])


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
    return Failure(Code.OUT_OF_RANGE, f"{found}: {description.model} takes {taken}; {remedy}")


def _slices(counted: TokenBatch) -> Iterator[bytes]:
    data = counted.ids.tobytes()
    start = 0  # pragma: no mutate: None begins a slice as 0 does
    for end in (np.cumsum(counted.lengths) * _ID_BYTES).tolist():
        yield data[start:end]
        start = end
