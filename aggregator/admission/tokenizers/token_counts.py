"""Count the tokens of texts: short requests together, of a long text only as much as the model can use."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.tokenizers.tokenizer import TokenBatch, Tokenizer
from aggregator.errors import Code
from aggregator.request import Failure, Request
from protos.embedding.v1 import embedding_pb2 as pb

LONG_CHARACTERS = 1 << 14
"""A request with more characters is counted by itself, so that others do not wait for it."""
_CALL_CHARACTERS = 1 << 16
"""Characters of one tokenizer call: short calls let others in between, and stop soon after a cancellation."""
_FIRST_PART, _LAST_PART = 8, 32
"""Characters of a long text that are tokenized per token that the model takes: at first, and in each later part."""
_LEAST_LAST_PART = 1 << 16
_ID_BYTES = 4
_LOG = logging.getLogger(__name__)
_UNCOUNTABLE = Failure(Code.INVALID_ARGUMENT, "the model's tokenizer cannot take this text")

Counted = bytes | Failure
"""The token ids of one text, int32 little endian, or why it has none."""


def apart(requests: Sequence[Request]) -> tuple[list[list[Request]], list[Request]]:
    """The groups of requests that are counted together, and the requests that are counted by themselves."""
    portions: list[list[Request]] = []
    long: list[Request] = []
    room = 0
    for request in requests:
        inputs = request.inputs
        characters = len(inputs[0]) if len(inputs) == 1 else sum(map(len, inputs))
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
    """Whether this is one request that is counted by itself."""
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
    """The ids of a long request's texts; of a text above the model's limit, at least those that truncation keeps.

    A text is tokenized part by part until there are more tokens than the model takes; the rest is not tokenized. Parts
    end where the tokenizer splits in any context, so that the ids are those of the whole. A text without such a place
    is cut anywhere, at many times the model's limit.
    """
    limit = model_revision.description.max_input_tokens
    keep_end = request.options.truncate == pb.TRUNCATE_START
    most = max(_LAST_PART * limit, _LEAST_LAST_PART)
    readings = [_Reading(model_revision.tokenizer, text, keep_end=keep_end) for text in texts]
    unread, characters = readings, _FIRST_PART * limit
    while unread:
        parts = [reading.next_part(characters, most) for reading in unread]
        for reading, counted in zip(unread, await _count_in_calls(model_revision, parts), strict=True):
            reading.take(counted)
        unread = [reading for reading in unread if reading.more and reading.tokens <= limit]
        characters = most
    return [_of_part(model_revision, request, reading) for reading in readings]


class _Reading:
    """A text that is counted part by part, from its start or its end; `more`: there are further parts."""

    def __init__(self, tokenizer: Tokenizer, text: str, *, keep_end: bool) -> None:
        self.ids = b""
        self.failure: Failure | None = None
        self.characters = 0
        self.more = True
        self._tokenizer = tokenizer
        self._rest = text
        self._keep_end = keep_end

    @property
    def tokens(self) -> int:
        """The tokens so far."""
        return len(self.ids) // _ID_BYTES

    @property
    def whole(self) -> bool:
        """Whether the whole text is counted."""
        return not self._rest

    def next_part(self, characters: int, most: int) -> str:
        """The next part, of at most `characters`, or `most` where no place is before; cut anywhere if none is found."""
        rest, keep_end = self._rest, self._keep_end
        part = self._tokenizer.part(rest, characters, keep_end=keep_end)
        part = part or self._tokenizer.part(rest, most, keep_end=keep_end)
        fits = bool(part)
        part = part or (rest[-most:] if keep_end else rest[:most])
        self._rest = rest[: len(rest) - len(part)] if keep_end else rest[len(part) :]
        self.more = fits and not self.whole
        self.characters += len(part)
        return part

    def take(self, counted: Counted) -> None:
        """Join the tokens of the part to those of the earlier parts."""
        if isinstance(counted, Failure):
            self.failure, self.more = counted, False
        elif not self.ids:
            self.ids = counted
        else:
            parts = (counted, self.ids) if self._keep_end else (self.ids, counted)
            self.ids = self._tokenizer.join_ids(*parts)


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


def _of_part(model_revision: ModelRevision, request: Request, reading: _Reading) -> Counted:
    """The ids of a text, or why it is refused where it is too long and must not be truncated."""
    if reading.failure is not None:
        return reading.failure
    if reading.whole or request.options.truncate != pb.TRUNCATE_NONE:
        return reading.ids
    limit = model_revision.description.max_input_tokens
    if reading.tokens > limit:
        return too_long(model_revision, request, f"more than {limit} tokens")
    return too_long(model_revision, request, f"more than {reading.characters} characters, of which no more are read")


def too_long(model_revision: ModelRevision, request: Request, found: str) -> Failure:
    """The failure for an input that is too long; `found`: its length."""
    description = model_revision.description
    remedy = "send less, or set truncate to TRUNCATE_END or TRUNCATE_START" if request.text is None else "send less"
    taken = f"{description.max_input_tokens} tokens" + ", those of the text included" * (request.text is not None)
    return Failure(Code.OUT_OF_RANGE, f"{found}: {description.model} takes {taken}; {remedy}")


def _slices(counted: TokenBatch) -> Iterator[bytes]:
    data = counted.ids.tobytes()
    start = 0
    for end in (np.cumsum(counted.lengths) * _ID_BYTES).tolist():
        yield data[start:end]
        start = end
