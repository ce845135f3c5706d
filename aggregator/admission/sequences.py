"""The sequences of a request, by its task: the texts to tokenize, and what an engine computes of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import Code, InvalidRequest
from aggregator.request.generation import Generation
from aggregator.request.request import Chunks, Failure, Input, Request, Scoring
from aggregator.scheduler.work_item import ID_BYTES, Task
from aggregator.tokenizers.counting import CALL_CHARACTERS
from protos.embedding.v1 import embedding_pb2 as pb

_CHARACTERS_PER_TOKEN = 32
"""A text with more of them per token that the model takes is not tokenized whole."""

Counted = bytes | Failure
"""The token ids of one text, int32 little endian, or why it has none."""
Made = tuple[bytes, int] | Failure
"""One input's sequence with its marks, as `WorkItem` has them, and the number of its tokens; or why it has none."""
UNCOUNTABLE = Failure(Code.INVALID_ARGUMENT, "the model's tokenizer cannot take this text")


_NO_ENDS = "", ""


class Sequences(Protocol):
    """How a task makes sequences of a request. Both methods may fail the request as a whole."""

    def texts(self, model_revision: ModelRevision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        """The texts to tokenize for the inputs at `indexes`."""
        ...

    def make(
        self, model_revision: ModelRevision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        """Each input's sequence, within the model's limit, or why it has none; `counted`: the tokens of its `texts`."""
        ...


class _Embedded(Sequences):
    """A text behind the prompt of its input type, or token ids as they are. A document: the prompt, then its chunks."""

    @override
    def texts(self, model_revision: ModelRevision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        prompt, values = model_revision.prompts[request.options.input_type], request.inputs
        texts: list[str] = []
        for index in indexes:
            value = values[index]
            if isinstance(value, str):
                texts.append(prompt + value)
            elif isinstance(value, Chunks) and value.texts:
                texts += [prompt, *value.texts]
        return texts

    @override
    def make(
        self, model_revision: ModelRevision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        left = iter(counted)
        for index in indexes:
            given = request.inputs[index]
            if isinstance(given, Chunks):
                parts = list(islice(left, len(given.texts) + 1)) if given.texts else []
                yield _document(model_revision, given, parts)
            else:
                yield _unmarked(fitted(model_revision, request, given if isinstance(given, bytes) else next(left)))


class _Generated(Sequences):
    """A prompt: a text, token ids, or a chat as the model's template formats it."""

    @override
    def texts(self, model_revision: ModelRevision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        generation = _generation(request)
        if not generation.messages:
            return [text for text in request.inputs if isinstance(text, str)]
        try:
            return [model_revision.tokenizer.prompt(generation.messages)]
        except InvalidRequest as error:
            request.fail(replace(Failure.of(error), field=generation.prompt_field))
            return ()

    @override
    def make(
        self, model_revision: ModelRevision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        given = request.inputs[0]
        token_ids = counted[0] if counted else given
        assert isinstance(token_ids, bytes | Failure), "A prompt was not tokenized. This is a bug."
        if isinstance(token_ids, bytes):
            token_ids = _prompt(model_revision, request, _generation(request), token_ids)
        yield _unmarked(fitted(model_revision, request, token_ids))


class _Scored(Sequences):
    """Two texts as the model joins them, or a text by itself. Of a pair the second text is cut, never the first."""

    @override
    def texts(self, model_revision: ModelRevision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        scoring, description, inputs = _scoring(request), model_revision.description, request.inputs
        if scoring.ranks and description.labels:
            message = f"{description.model} classifies and does not rank: ask for its scores"
            request.fail(Failure(Code.INVALID_ARGUMENT, message, field="model"))
            return ()
        firsts = _firsts(scoring, indexes)
        if model_revision.pair_frame is not None:
            return [*firsts, *(str(inputs[index]) for index in indexes)]
        if None in scoring.firsts:
            message = f"{description.model} scores pairs of texts, and no text by itself"
            request.fail(Failure(Code.INVALID_ARGUMENT, message))
            return ()
        if scoring.max_tokens_per_doc:
            message = f"{description.model} joins pairs by a template of text: documents are cut by truncate_to alone"
            request.fail(Failure(Code.INVALID_ARGUMENT, message, field="max_tokens_per_doc"))
            return ()
        most = most_characters(model_revision)
        ends = {first: model_revision.pair_ends(first) if len(first) <= most else _NO_ENDS for first in firsts}
        return JoinedTexts(ends, scoring.firsts, inputs, indexes, most, request.options.truncate)

    @override
    def make(
        self, model_revision: ModelRevision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        scoring = _scoring(request)
        ends = _ends(model_revision, request, _firsts(scoring, indexes), iter(counted))
        for index, found in zip(indexes, counted[len(counted) - len(indexes) :], strict=True):
            first = scoring.firsts[index]
            if isinstance(found, Failure):
                yield found
            elif first is None:
                yield _marked(model_revision, fitted(model_revision, request, found), len(found))
            elif isinstance(both := ends[first], Failure):
                yield both
            else:
                yield _joined(model_revision, request, *both, model_revision.tokenizer.without_special(found))


class JoinedTexts(Sequence[str]):
    """The ends of each first text, then each pair as a template of text joins it: joined one at a time, as it is asked.

    A first text of more than `most` characters is joined with none: no pair of it fits.
    """

    def __init__(  # noqa: PLR0917 - each once
        self,
        ends: Mapping[str, tuple[str, str]],
        firsts: Sequence[str | None],
        seconds: Sequence[Input],
        indexes: Sequence[int],
        most: int,
        truncate: int,
    ) -> None:
        self._ends = ends
        self._listed = [end for both in ends.values() for end in both]
        self._firsts, self._seconds, self._indexes = firsts, seconds, indexes
        self._most, self._truncate = most, truncate

    @override
    def __len__(self) -> int:
        return len(self._listed) + len(self._indexes)

    @override
    def __getitem__(self, place: Any) -> Any:
        if place < len(self._listed):
            return self._listed[place]
        index = self._indexes[place - len(self._listed)]
        before, after = ends = self._ends[self._firsts[index] or ""]
        second = str(self._seconds[index])
        room = max(0, self._most - len(before) - len(after))
        if ends is _NO_ENDS:
            return ""
        if len(second) > room and self._truncate != pb.TRUNCATE_NONE:
            second = second[len(second) - room :] if self._truncate == pb.TRUNCATE_START else second[:room]
        return before + second + after


def _firsts(scoring: Scoring, indexes: Sequence[int]) -> list[str]:
    """The different first texts of pairs: each is tokenized once."""
    return [first for first in dict.fromkeys(scoring.firsts[index] for index in indexes) if first is not None]


def _ends(
    model_revision: ModelRevision, request: Request, firsts: Sequence[str], counted: Iterator[Counted]
) -> dict[str, tuple[bytes, bytes] | Failure]:
    """Of each first text, the tokens before and after the second text, or why no pair of it fits."""
    frame, bare = model_revision.pair_frame, model_revision.tokenizer.without_special
    ends: dict[str, tuple[bytes, bytes] | Failure] = {}
    for first in firsts:
        found, after = next(counted), frame.after if frame is not None else next(counted)
        if len(first) > most_characters(model_revision):
            ends[first] = _no_room(model_revision, request, f"has {len(first)} characters")
            continue
        if isinstance(found, Failure) or isinstance(after, Failure):
            ends[first] = found if isinstance(found, Failure) else UNCOUNTABLE
            continue
        both = (bare(found), bare(after)) if frame is None else (frame.before + bare(found) + frame.between, after)
        tokens = sum(map(len, both)) // ID_BYTES
        if tokens >= _limit(model_revision, request):
            ends[first] = _no_room(model_revision, request, f"takes {tokens} tokens of a pair")
        else:
            ends[first] = both
    return ends


def _no_room(model_revision: ModelRevision, request: Request, found: str) -> Failure:
    limit = f"{model_revision.description.model} takes {_limit(model_revision, request)} tokens"
    message = f"the query {found}, which leaves no room for a document: {limit}; send a shorter query"
    return Failure(Code.OUT_OF_RANGE, message, field="query")


def _joined(model_revision: ModelRevision, request: Request, before: bytes, after: bytes, second: bytes) -> Made:
    """A pair within the limit, its second text cut; with a template of text, `second` is the pair already."""
    framed, most = model_revision.pair_frame is not None, _scoring(request).max_tokens_per_doc * ID_BYTES
    if most:
        second = second[-most:] if request.options.truncate == pb.TRUNCATE_START else second[:most]
    whole, limit = before + second + after if framed else second, _limit(model_revision, request) * ID_BYTES
    if len(whole) > limit:
        truncate = request.options.truncate
        if truncate == pb.TRUNCATE_NONE:
            return too_long(model_revision, request, f"{len(whole) // ID_BYTES} tokens")
        if truncate == pb.TRUNCATE_START:
            whole = before + whole[len(whole) - (limit - len(before)) :]
        else:
            whole = whole[: limit - len(after)] + after
    return _marked(model_revision, whole, len(before) if framed else len(whole))


def _marked(model_revision: ModelRevision, sequence: Counted, second_bytes: int) -> Made:
    """A sequence with the place at which its second text begins, if the model tells texts apart."""
    template = model_revision.description.pair_template
    if isinstance(sequence, Failure) or template is None or not template.token_types:
        return _unmarked(sequence)
    return sequence + (second_bytes // ID_BYTES).to_bytes(ID_BYTES, "little"), len(sequence) // ID_BYTES


def _unmarked(sequence: Counted) -> Made:
    return sequence if isinstance(sequence, Failure) else (sequence, len(sequence) // ID_BYTES)


def _document(model_revision: ModelRevision, chunks: Chunks, parts: Sequence[Counted]) -> Made:
    """A document as one sequence, with the span of each chunk; `parts`: the tokens of the prompt, and of each text."""
    description, tokenizer = model_revision.description, model_revision.tokenizer
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


def _prompt(model_revision: ModelRevision, request: Request, generation: Generation, token_ids: bytes) -> Counted:
    if generation.messages:  # the template itself places special tokens
        token_ids = model_revision.tokenizer.without_special(token_ids)
    description = model_revision.description
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
        return too_long(model_revision, request, f"{tokens} tokens")
    generation.begin(description.model_revision, token_ids, model_revision.tokenizer.detokenizer(token_ids))
    return token_ids


def fitted(model_revision: ModelRevision, request: Request, counted: Counted) -> Counted:
    """A text's tokens within the limit: truncated, or a failure where the request does not allow that."""
    limit = _limit(model_revision, request)
    if isinstance(counted, Failure) or len(counted) <= limit * ID_BYTES:
        return counted
    truncate = request.options.truncate
    if truncate == pb.TRUNCATE_NONE:
        return too_long(model_revision, request, f"{len(counted) // ID_BYTES} tokens")
    return model_revision.tokenizer.truncate_ids(counted, limit, keep_end=truncate == pb.TRUNCATE_START)


def _limit(model_revision: ModelRevision, request: Request) -> int:
    """The most tokens of one of its sequences."""
    limit = model_revision.description.max_input_tokens
    return min(limit, request.options.truncate_to) if request.options.truncate_to else limit


def most_characters(model_revision: ModelRevision) -> int:
    """Characters of a text above which it is not tokenized whole."""
    return max(_CHARACTERS_PER_TOKEN * model_revision.description.max_input_tokens, CALL_CHARACTERS)


def too_long(model_revision: ModelRevision, request: Request, found: str) -> Failure:
    """The failure for an input that is too long; `found`: its length."""
    description = model_revision.description
    remedy = (
        "send less, or set truncate to TRUNCATE_END or TRUNCATE_START" if request.generation is None else "send less"
    )
    taken = f"{description.max_input_tokens} tokens" + ", those of the text included" * (request.generation is not None)
    field = "" if request.generation is None else request.generation.prompt_field
    return Failure(Code.OUT_OF_RANGE, f"{found}: {description.model} takes {taken}; {remedy}", field=field)


def _generation(request: Request) -> Generation:
    assert request.generation is not None, "A request without a generation was to be generated. This is a bug."
    return request.generation


def _scoring(request: Request) -> Scoring:
    assert request.scoring is not None, "A request without a score was to be scored. This is a bug."
    return request.scoring


SEQUENCES: Mapping[Task, Sequences] = {Task.EMBED: _Embedded(), Task.GENERATE: _Generated(), Task.SCORE: _Scored()}
