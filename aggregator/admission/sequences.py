"""The sequences of a request: the texts to tokenize, and what an engine computes of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from aggregator.errors import Code
from aggregator.request.kind import Counted, Made, Revision
from aggregator.request.request import Chunks, Failure, Request
from aggregator.scheduler.work_item import ID_BYTES
from aggregator.tokenizers.counting import CALL_CHARACTERS
from protos.embedding.v1 import embedding_pb2 as pb

_CHARACTERS_PER_TOKEN = 32
"""A text with more of them per token that the model takes is not tokenized whole."""

_NOTHING = Failure(Code.INVALID_ARGUMENT, "the input has no tokens: leave it out")
UNCOUNTABLE = Failure(Code.INVALID_ARGUMENT, "the model's tokenizer cannot take this text")


def texts(revision: Revision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
    """A text behind the prompt of its input type; token ids have none. A document: the prompt, then its chunks."""
    prompt, values = revision.prompts[request.options.input_type], request.inputs
    needed: list[str] = []
    for index in indexes:
        value = values[index]
        if isinstance(value, str):
            needed.append(prompt + value)
        elif isinstance(value, Chunks) and value.texts:
            needed += [prompt, *value.texts]
    return needed


def made(revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]) -> list[Made]:
    """Each text's tokens, token ids as they are, or a document's tokens with the spans of its chunks."""
    left = iter(counted)
    most_bytes = limit_of(revision, request) * ID_BYTES
    all_known: bool | None = None
    found: list[Made] = []
    for index in indexes:
        given = request.inputs[index]
        if isinstance(given, Chunks):
            parts = list(islice(left, len(given.texts) + 1)) if given.texts else []
            found.append(_document(revision, given, parts))
            continue
        sequence: Counted
        if isinstance(given, bytes):
            if all_known is None:  # looked at together
                ids = b"".join(each for each in request.inputs if isinstance(each, bytes))
                all_known = unknown_id(revision, ids) is None
            sequence = given if all_known else unknown_id(revision, given) or given
        else:
            sequence = next(left)
        if sequence == b"":
            found.append(_NOTHING)
        elif isinstance(sequence, bytes) and len(sequence) <= most_bytes:  # as most do
            found.append((sequence, len(sequence) // ID_BYTES))
        else:
            found.append(unmarked(fitted(revision, request, sequence)))
    return found


def unknown_id(revision: Revision, token_ids: bytes) -> Failure | None:
    """The failure for ids of which one is not the model's: no server would take it."""
    size = revision.description.vocabulary_size
    if not token_ids or np.frombuffer(token_ids, "<i4").max() < size:
        return None
    return Failure(Code.INVALID_ARGUMENT, f"a token id is not below {size}, the size of the vocabulary")


def unmarked(sequence: Counted) -> Made:
    return sequence if isinstance(sequence, Failure) else (sequence, len(sequence) // ID_BYTES)


def _document(revision: Revision, chunks: Chunks, parts: Sequence[Counted]) -> Made:
    """A document as one sequence, with the span of each chunk; `parts`: the tokens of the prompt, and of each text."""
    description, tokenizer = revision.description, revision.tokenizer
    if not description.pools_spans:
        message = (
            f"{description.model} gives no vectors of chunks: a document in chunks takes a model that pools by the"
            " mean, on servers that only embed; send each chunk as an input"
        )
        return Failure(Code.INVALID_ARGUMENT, message, field="model")
    token_ids, spans = chunks.token_ids, chunks.spans
    if (unknown := unknown_id(revision, token_ids)) is not None:
        return unknown
    if parts:
        bare: list[bytes] = []
        for index, part in enumerate(parts, -1):
            if isinstance(part, Failure):
                return part
            bare.append(tokenizer.without_special(part))
            if not bare[-1] and index >= 0:
                return Failure(Code.INVALID_ARGUMENT, f"chunk {index} has no tokens: leave it out")
        before, after = tokenizer.special_ids
        token_ids = b"".join((before, *bare, after))
        sizes = np.array([len(before), *map(len, bare)], "<i4") // ID_BYTES
        ends = np.cumsum(sizes, dtype="<i4")[1:]
        spans = np.stack((ends[:-1], ends[1:]), axis=1).tobytes()
    tokens, limit = len(token_ids) // ID_BYTES, description.max_input_tokens
    if tokens > limit:
        message = f"the document has {tokens} tokens: {description.model} takes {limit}; send fewer of its chunks"
        return Failure(Code.OUT_OF_RANGE, message)
    return token_ids + spans, tokens


def fitted(revision: Revision, request: Request, counted: Counted) -> Counted:
    """A text's tokens within the limit: truncated, or a failure where the request does not allow that."""
    limit = limit_of(revision, request)
    if isinstance(counted, Failure) or len(counted) <= limit * ID_BYTES:
        return counted
    truncate = request.options.truncate
    if truncate == pb.TRUNCATE_NONE:
        found = f"{len(counted) // ID_BYTES} tokens"
        if limit == request.options.truncate_to:
            message = f"{found}: truncate_to leaves {limit}, and truncate cuts none; set truncate, or send less"
            return Failure(Code.OUT_OF_RANGE, message, field="truncate_to")
        return too_long(revision, request, found)
    return revision.tokenizer.truncate_ids(counted, limit, keep_end=truncate == pb.TRUNCATE_START)


def limit_of(revision: Revision, request: Request) -> int:
    """The most tokens of one of its sequences."""
    limit = revision.description.max_input_tokens
    return min(limit, request.options.truncate_to) if request.options.truncate_to else limit


def most_characters(revision: Revision) -> int:
    """Characters of a text above which it is not tokenized whole."""
    return max(_CHARACTERS_PER_TOKEN * revision.description.max_input_tokens, CALL_CHARACTERS)


def too_long(revision: Revision, request: Request, found: str) -> Failure:
    """The failure for an input that is too long; `found`: its length."""
    return request.kind.too_long(request, revision.description, found)
