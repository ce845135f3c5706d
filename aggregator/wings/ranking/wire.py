"""Decode requests for scores, and make their responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from aggregator.errors import Code, InvalidRequest
from aggregator.request.kind import Parts
from aggregator.request.request import MAX_INPUTS, Failure, Outcome, Request
from aggregator.request.vector import Vector
from aggregator.sources.wire.decode import SMALL_BYTES, options_of
from aggregator.sources.wire.encode import fill_status, fill_summary
from aggregator.sources.wire.fields import fields
from aggregator.sources.wire.message import check_count, check_marks, decode_checked, fill_json, json_object
from aggregator.wings.ranking.scoring import Scoring, scoring_of
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.ranking.v1 import ranking_pb2 as pb

_FIELDS_PER_INPUT, _OTHER_FIELDS = 2, 64


@dataclass(frozen=True, slots=True)
class TextPairs:
    """A ScoreRequest whose pairs lie beside it: many may have one first text, which a message would copy for each."""

    fields: pb.ScoreRequest
    firsts: Sequence[str]
    seconds: Sequence[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fields, name)


ScoresRequest = pb.RankRequest | pb.ScoreRequest | TextPairs
ScoresResponse = pb.RankResponse | pb.ScoreResponse


def check(data: bytes) -> None:
    """Raises InvalidRequest for a message with too many fields, DecodeError for one whose fields cannot be read."""
    most = _FIELDS_PER_INPUT * MAX_INPUTS + _OTHER_FIELDS
    if len(data) > SMALL_BYTES and next(islice(fields(data, 0, len(data)), most, None), None) is not None:
        raise InvalidRequest(f"the message holds more than {most} fields: at most {MAX_INPUTS} texts are scored")


def decode_rank(data: bytes) -> pb.RankRequest:
    """Raises InvalidRequest."""
    return decode_checked(pb.RankRequest, data, check)


def decode_score(data: bytes) -> pb.ScoreRequest:
    """Raises InvalidRequest."""
    return decode_checked(pb.ScoreRequest, data, check)


def decode_rank_json(data: bytes) -> pb.RankRequest:
    """A RankRequest in JSON. Raises InvalidRequest or Undecodable, which quote no value."""
    check_marks(data, MAX_INPUTS)
    return fill_json(pb.RankRequest(), json_object(data))


def parts(message: ScoresRequest) -> Parts:
    """The second texts of its pairs as inputs, and the rest of what it asks for.

    Raises InvalidRequest where the whole request is at fault; an empty document or pair only has its own Failure.
    """
    if isinstance(message, pb.RankRequest):
        inputs, outcomes, scoring = _documents(message)
    elif isinstance(message, TextPairs):
        inputs, outcomes, scoring = _paired(message.firsts, message.seconds)
    else:
        inputs, outcomes, scoring = _pairs(message)
    return inputs, outcomes, options_of(message.truncate, message.truncate_to), scoring


def _documents(message: pb.RankRequest) -> tuple[Sequence[str], list[Outcome | None], Scoring]:
    if not message.query:
        raise InvalidRequest("the query is empty: send a text to rank by", "query")
    documents = list(message.documents)
    check_count(len(documents), MAX_INPUTS, "documents", "documents")
    outcomes: list[Outcome | None] = [None if document else _empty("the document is empty") for document in documents]
    firsts = [message.query] * len(documents)
    scoring = Scoring(firsts, True, message.top_n, message.return_documents, message.max_tokens_per_doc)
    return documents, outcomes, scoring


def _pairs(message: pb.ScoreRequest) -> tuple[Sequence[str], list[Outcome | None], Scoring]:
    pairs = message.pairs
    check_count(len(pairs), MAX_INPUTS, "pairs", "pairs")
    are_pairs = [pair.HasField("second_text") for pair in pairs]
    inputs = [pair.second_text if both else pair.text for pair, both in zip(pairs, are_pairs, strict=True)]
    firsts = [pair.text if both else None for pair, both in zip(pairs, are_pairs, strict=True)]
    return _paired(firsts, inputs)


def _paired(
    firsts: Sequence[str | None], seconds: Sequence[str]
) -> tuple[Sequence[str], list[Outcome | None], Scoring]:
    check_count(len(seconds), MAX_INPUTS, "pairs", "pairs")
    full = [first != "" and second != "" for first, second in zip(firsts, seconds, strict=True)]
    return seconds, [None if each else _empty("a text of the pair is empty") for each in full], Scoring(firsts)


def _empty(message: str) -> Failure:
    """The failure of one input, which is no other's."""
    return Failure(Code.INVALID_ARGUMENT, f"{message}: leave it out")


def ranked(request: Request) -> list[int]:
    """The indexes of the documents to return: of those with a score the best, then of those that failed."""
    outcomes, top_n = request.outcomes, scoring_of(request).top_n
    scores = {index: scores_of(found)[0] for index, found in enumerate(outcomes) if isinstance(found, Vector)}
    best = sorted(scores, key=lambda index: -scores[index])
    return [*best[: top_n or None], *(index for index in range(len(outcomes)) if index not in scores)]


def scores_of(found: Vector) -> Sequence[float]:
    scores: list[float] = found.batch.matrix[found.row].tolist()
    return scores


def response(request: Request, reply_id: str) -> ScoresResponse:
    """The response to a completed request, the same for gRPC, Kafka and Redis."""
    if scoring_of(request).ranks:
        ranking = pb.RankResponse(replay=request.replay)
        fill_summary(ranking, request, reply_id)
        for index in ranked(request):
            _fill_document(ranking.results.add(index=index), request, index)
        return ranking
    scores = pb.ScoreResponse()
    fill_summary(scores, request, reply_id)
    for found in request.outcomes:
        result = scores.results.add()
        if isinstance(found, Vector):
            result.scores.extend(scores_of(found))
            result.token_count = found.token_count
        _fill_status(result.status, found)
    labels = next((found.batch.labels for found in request.outcomes if isinstance(found, Vector)), ())
    scores.labels.extend(labels)
    return scores


def _fill_document(result: pb.RankedDocument, request: Request, index: int) -> None:
    found = request.outcomes[index]
    if scoring_of(request).return_documents:
        result.document = str(request.inputs[index])
    if isinstance(found, Vector):
        result.score = scores_of(found)[0]
        result.token_count = found.token_count
    _fill_status(result.status, found)


def _fill_status(status: embedding.Status, found: Outcome | None) -> None:
    if isinstance(found, Failure):
        fill_status(status, found)
    else:
        status.SetInParent()
