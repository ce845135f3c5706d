"""The sequences of texts whose every token gets a vector: a prefix, the text, what fills it up, and a span a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from aggregator.admission.sequences import unknown_id
from aggregator.errors import Code
from aggregator.model_server import Details
from aggregator.request.kind import Counted, Made, Revision
from aggregator.request.request import Failure, Request
from aggregator.scheduler.work_item import ID_BYTES
from aggregator.wings.token_vectors.rules import Rules, Side
from protos.embedding.v1 import embedding_pb2 as pb


@dataclass(slots=True)
class Sequences:
    """What a request keeps of the sequences of its inputs: the `ids` of each row, int32 little endian, and their sum.

    `weights`: rows are weights; `special`: ids whose weight is left out.
    """

    ids: dict[int, bytes] = field(default_factory=dict[int, bytes])
    rows: int = 0
    weights: bool = False
    special: frozenset[int] = frozenset()


def sequences_of(request: Request) -> Sequences:
    made = request.details
    assert isinstance(made, Sequences), "A request for something else was to get a vector a token. This is a bug."
    return made


def rules_of(details: Details) -> Rules:
    assert isinstance(details, Rules), "A server of another task was to give a vector a token. This is a bug."
    return details


def side_of(rules: Rules, request: Request) -> Side:
    """Queries say so; everything else is a document."""
    return rules.query if request.options.input_type == pb.INPUT_TYPE_QUERY else rules.document


def prompt_of(revision: Revision, request: Request) -> str:
    """The text before an input of its side."""
    query = request.options.input_type == pb.INPUT_TYPE_QUERY
    return revision.prompts[pb.INPUT_TYPE_QUERY if query else pb.INPUT_TYPE_DOCUMENT]


def made(revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]) -> Iterator[Made]:
    """Each text's sequence with the span of each of its rows; token ids are taken as they are."""
    rules = rules_of(revision.description.details)
    kept, side, left = sequences_of(request), side_of(rules, request), iter(counted)
    kept.rows, kept.weights, kept.special = 0, rules.weights, rules.special
    if rules.weights and request.options.encoding != pb.ENCODING_FLOAT32:
        message = f"{revision.description.model} gives weights, which have no encoding: leave encoding out"
        yield from [Failure(Code.INVALID_ARGUMENT, message, field="encoding")] * len(indexes)
        return
    special_bytes = len(revision.tokenizer.special_ids[0])
    for index in indexes:
        given = request.inputs[index]
        if isinstance(given, bytes):
            known = unknown_id(revision, given) or given
            sequence = _fitted(revision, request, Side(most_tokens=side.most_tokens), known)
        else:
            sequence = _fitted(revision, request, side, next(left))
            if isinstance(sequence, bytes):
                sequence = side.sequence(sequence, special_bytes)
        if isinstance(sequence, Failure):
            yield sequence
            continue
        spans = side.spans(sequence)
        if not spans:
            message = "none of its tokens has a vector, by the model's rules: leave it out"
            yield Failure(Code.INVALID_ARGUMENT, message)
            continue
        kept.ids[index] = sequence
        kept.rows += len(spans) // (2 * ID_BYTES)
        yield sequence + spans, len(sequence) // ID_BYTES


def _fitted(revision: Revision, request: Request, side: Side, counted: Counted) -> Counted:
    """A text's tokens within its side's limit, which its prefix shortens; truncated where the request allows it."""
    limit = min(each for each in (revision.description.max_input_tokens, side.most_tokens) if each)
    if request.options.truncate_to:
        limit = min(limit, request.options.truncate_to)
    before = len(side.prefix) // ID_BYTES
    if 0 < request.options.truncate_to <= before:
        message = (
            f"truncate_to {request.options.truncate_to} leaves no room for a text behind the {before} tokens of the"
            " model's prefix"
        )
        return Failure(Code.INVALID_ARGUMENT, message, field="truncate_to")
    limit -= before
    if isinstance(counted, Failure) or len(counted) <= limit * ID_BYTES:
        return counted
    truncate = request.options.truncate
    if truncate == pb.TRUNCATE_NONE:
        fits = replace(revision.description, max_input_tokens=limit)
        return request.kind.too_long(request, fits, f"{len(counted) // ID_BYTES} tokens")
    return revision.tokenizer.truncate_ids(counted, limit, keep_end=truncate == pb.TRUNCATE_START)
