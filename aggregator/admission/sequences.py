"""The sequences of a request: the texts to tokenize, and what an engine computes of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from aggregator.errors import Code, InvalidRequest
from aggregator.request.generation import Generation
from aggregator.request.kind import Counted, Made, Revision
from aggregator.request.request import Chunks, Failure, Request
from aggregator.scheduler.work_item import ID_BYTES
from aggregator.tokenizers.counting import CALL_CHARACTERS
from protos.embedding.v1 import embedding_pb2 as pb

_CHARACTERS_PER_TOKEN = 32
"""A text with more of them per token that the model takes is not tokenized whole."""

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


def made(revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]) -> Iterator[Made]:
    """Each text's tokens, token ids as they are, or a document's tokens with the spans of its chunks."""
    left = iter(counted)
    for index in indexes:
        given = request.inputs[index]
        if isinstance(given, Chunks):
            parts = list(islice(left, len(given.texts) + 1)) if given.texts else []
            yield _document(revision, given, parts)
        else:
            yield unmarked(fitted(revision, request, given if isinstance(given, bytes) else next(left)))


def prompt_texts(revision: Revision, request: Request) -> Sequence[str]:
    """A prompt: a text, token ids, or a chat as the model's template formats it."""
    generation = _generation(request)
    if not generation.messages:
        return [text for text in request.inputs if isinstance(text, str)]
    try:
        return [revision.tokenizer.prompt(generation.messages)]
    except InvalidRequest as error:
        request.fail(replace(Failure.of(error), field=generation.prompt_field))
        return ()


def prompts(revision: Revision, request: Request, counted: Sequence[Counted]) -> Iterator[Made]:
    """The tokens of its prompt."""
    given = request.inputs[0]
    token_ids = counted[0] if counted else given
    assert isinstance(token_ids, bytes | Failure), "A prompt was not tokenized. This is a bug."
    if isinstance(token_ids, bytes):
        token_ids = _prompt(revision, request, _generation(request), token_ids)
    yield unmarked(fitted(revision, request, token_ids))


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


def _prompt(revision: Revision, request: Request, generation: Generation, token_ids: bytes) -> Counted:
    if generation.messages:  # the template itself places special tokens
        token_ids = revision.tokenizer.without_special(token_ids)
    description = revision.description
    size = description.vocabulary_size
    if token_ids and np.frombuffer(token_ids, np.int32).max() >= size:
        message = f"a token id is not below {size}, the size of the vocabulary"
        return Failure(Code.INVALID_ARGUMENT, message, field=generation.prompt_field)
    if any(token_id >= size for token_id in generation.sampling.stop_token_ids):
        field = "sampling.stop_token_ids"
        message = f"{field} holds an id that is not below {size}, the size of the vocabulary"
        return Failure(Code.INVALID_ARGUMENT, message, field=field)
    tokens = len(token_ids) // ID_BYTES
    if not tokens:
        return Failure(Code.INVALID_ARGUMENT, "the prompt has no tokens", field=generation.prompt_field)
    if tokens >= description.max_input_tokens:
        return too_long(revision, request, f"{tokens} tokens")
    generation.begin(description.model_revision, token_ids, revision.tokenizer.detokenizer(token_ids))
    return token_ids


def fitted(revision: Revision, request: Request, counted: Counted) -> Counted:
    """A text's tokens within the limit: truncated, or a failure where the request does not allow that."""
    limit = limit_of(revision, request)
    if isinstance(counted, Failure) or len(counted) <= limit * ID_BYTES:
        return counted
    truncate = request.options.truncate
    if truncate == pb.TRUNCATE_NONE:
        return too_long(revision, request, f"{len(counted) // ID_BYTES} tokens")
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
    description = revision.description
    remedy = (
        "send less, or set truncate to TRUNCATE_END or TRUNCATE_START" if request.generation is None else "send less"
    )
    taken = f"{description.max_input_tokens} tokens" + ", those of the text included" * (request.generation is not None)
    field = "" if request.generation is None else request.generation.prompt_field
    return Failure(Code.OUT_OF_RANGE, f"{found}: {description.model} takes {taken}; {remedy}", field=field)


def _generation(request: Request) -> Generation:
    assert request.generation is not None, "A request without a generation was to be generated. This is a bug."
    return request.generation
