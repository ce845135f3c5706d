"""Count the tokens of requests' texts: short ones of many requests together, of a long one no more than can matter."""

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
"""A request with more of them is counted by itself, lest others wait for it."""
_CALL_CHARACTERS = 1 << 16
"""Texts go to the tokenizer in calls of about so many, lest others wait long, or work go on whose caller is gone."""
_FIRST_PART, _LAST_PART = 8, 32
"""Characters of a long text that are tokenized for each token that the model takes: at first, and then at a time."""
_LEAST_LAST_PART = 1 << 16
_ID_BYTES = 4
_LOG = logging.getLogger(__name__)
_UNCOUNTABLE = Failure(Code.INVALID_ARGUMENT, "the model's tokenizer cannot take this text")

Counted = bytes | Failure
"""The token ids of one text, int32 little endian, or why it has none."""


def apart(requests: Sequence[Request]) -> tuple[list[list[Request]], list[Request]]:
    """The requests that are counted together, so many at a time, and those that are counted by themselves."""
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
    """Whether they are one of those that are counted by themselves."""
    return len(requests) == 1 and bool(apart(requests)[1])


async def count_together(model_revision: ModelRevision, texts: Sequence[str], *, long: bool = False) -> list[Counted]:
    """The ids of each text, in one call; one that the tokenizer cannot take must not harm the others."""
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
    """The ids of a long request's texts; of one longer than the model takes, at least those that truncation keeps.

    The rest of that is not tokenized: a text is read part by part, cut where its tokenizer splits whatever stands
    around, so that the ids are those of the whole, until there are more than the model takes. Only a text that has no
    such place is cut anywhere, and at many times what the model takes.
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
    """A text that is counted part by part, from its start or from its end; `more`: there are parts to be had."""

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
        """Of what was read."""
        return len(self.ids) // _ID_BYTES

    @property
    def whole(self) -> bool:
        """Whether all of it was read."""
        return not self._rest

    def next_part(self, characters: int, most: int) -> str:
        """Of at most so many characters; of `most` where it has no place before that, cut anywhere if it has none."""
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
        """The tokens of the part stand next to those of the others."""
        if isinstance(counted, Failure):
            self.failure, self.more = counted, False
        elif not self.ids:
            self.ids = counted
        else:
            parts = (counted, self.ids) if self._keep_end else (self.ids, counted)
            self.ids = self._tokenizer.join_ids(*parts)


async def _count_in_calls(model_revision: ModelRevision, texts: Sequence[str]) -> list[Counted]:
    """One call after the other: whoever else waits has a turn between them, and who has gone away has no more."""
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
    """What was read of a text, or, where it is to be cut and must not be, why it is refused."""
    if reading.failure is not None:
        return reading.failure
    if reading.whole or request.options.truncate != pb.TRUNCATE_NONE:
        return reading.ids
    limit = model_revision.description.max_input_tokens
    if reading.tokens > limit:
        return too_long(model_revision, request, f"more than {limit} tokens")
    return too_long(model_revision, request, f"more than {reading.characters} characters, of which no more are read")


def too_long(model_revision: ModelRevision, request: Request, found: str) -> Failure:
    """The refusal of an input of which so much was `found`."""
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
