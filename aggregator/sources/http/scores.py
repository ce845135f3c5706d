"""Read the bodies of the routes for scores, as Jina's, Cohere's, Voyage's and vLLM's clients send them, and answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Annotated, Any

import msgspec
from typing_extensions import override

from aggregator.request.request import Defaults, Request
from aggregator.request.vector import Vector
from aggregator.sources.http.answer import Answer, AskedPriority, Ignored, checked_id, priority_of, token_count
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.wire.fields import MAX_INT32
from aggregator.sources.wire.scores import MAX_INPUTS, ranked, scores_of
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.ranking.v1 import ranking_pb2 as pb

_DOCUMENTS_PER_SEARCH = 100
"""Cohere's unit: a query with up to so many documents is one search."""

_Tokens = Annotated[int, msgspec.Meta(ge=-1, le=MAX_INT32)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT32)]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _Body(Ignored, kw_only=True, forbid_unknown_fields=True):
    """The fields of all of them."""

    model: str | None = None
    user: str | None = None
    request_id: str | None = None
    priority: AskedPriority = None
    truncation: bool | None = None
    truncate_prompt_tokens: _Tokens | None = None

    def fields(self, defaults: Defaults, request_id: str) -> dict[str, Any]:
        """The fields that every request for scores has. Too long documents are cut, unless it says no."""
        if self.truncate_prompt_tokens == 0:
            raise FieldError(
                "expected -1, which truncates to what the model takes, or 1 and more", "truncate_prompt_tokens"
            )
        return {
            "request_id": checked_id(self.request_id) or request_id,
            "model": self.model or "",
            "priority": priority_of(self.priority, defaults.priority),
            "truncate": embedding.TRUNCATE_NONE if self.truncation is False else embedding.TRUNCATE_END,
            "truncate_to": max(0, self.truncate_prompt_tokens or 0),
            "tenant": self.user or "",
        }


class RerankBody(_Body, kw_only=True, forbid_unknown_fields=True):
    """`POST /rerank`, `/v1/rerank` and `/v2/rerank`; `top_k` is Voyage's name for `top_n`."""

    query: str
    documents: list[str | _Document]
    top_n: _Count | None = None
    top_k: _Count | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: _Count | None = None


class ScoreBody(_Body, kw_only=True, forbid_unknown_fields=True):
    """`POST /score`, as vLLM's server has it: a text with another, with each of several, or several pairs."""

    text_1: str | list[str]
    text_2: str | list[str]


class ClassifyBody(_Body, kw_only=True, forbid_unknown_fields=True):
    """`POST /classify`, as vLLM's server has it."""

    input: str | list[str]


_RERANK = msgspec.json.Decoder(RerankBody)
_SCORE = msgspec.json.Decoder(ScoreBody)
_CLASSIFY = msgspec.json.Decoder(ClassifyBody)


def read_rerank(
    data: bytes, defaults: Defaults, request_id: str, *, returns_documents: bool
) -> tuple[pb.RankRequest, Answer]:
    """The message for a body, and how it is answered; `returns_documents`: unless it says. Raises FieldError."""
    asked = decode_body(_RERANK, data)
    if asked.top_n and asked.top_k:
        raise FieldError("top_n says the same: send one of them", "top_k")
    is_voyage_s = asked.truncation is not None or asked.top_k is not None
    wanted = asked.return_documents
    message = pb.RankRequest(
        query=asked.query,
        documents=[each if isinstance(each, str) else each.text for each in asked.documents],
        top_n=asked.top_n or asked.top_k or 0,
        return_documents=(returns_documents and not is_voyage_s) if wanted is None else wanted,
        max_tokens_per_doc=asked.max_tokens_per_doc or 0,
        **asked.fields(defaults, request_id),
    )
    return message, (RankedData if is_voyage_s else RankedResults)(asked.ignored())


def read_score(data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.ScoreRequest, Answer]:
    """The message for a body, and how it is answered. Raises FieldError."""
    asked = decode_body(_SCORE, data)
    firsts, seconds = ([each] if isinstance(each, str) else each for each in (asked.text_1, asked.text_2))
    if len(firsts) == 1 and not isinstance(asked.text_2, str):
        firsts *= len(seconds)
    _check_count(len(seconds), "text_2")
    if len(firsts) != len(seconds):
        raise FieldError(f"{len(seconds)} texts for {len(firsts)} in text_1: expected one text, or as many", "text_2")
    pairs = [pb.Pair(text=first, second_text=second) for first, second in zip(firsts, seconds, strict=True)]
    return pb.ScoreRequest(pairs=pairs, **asked.fields(defaults, request_id)), PairScores(asked.ignored())


def read_classify(data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.ScoreRequest, Answer]:
    """The message for a body, and how it is answered. Raises FieldError."""
    asked = decode_body(_CLASSIFY, data)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    _check_count(len(texts), "input")
    message = pb.ScoreRequest(pairs=[pb.Pair(text=text) for text in texts], **asked.fields(defaults, request_id))
    return message, Classes(asked.ignored())


def _check_count(count: int, field: str) -> None:
    if not 0 < count <= MAX_INPUTS:
        raise FieldError("at least one is needed" if not count else f"{count}: at most {MAX_INPUTS} are taken", field)


class _Scores(Answer):
    """The fields that all answers share."""

    remedy = "leave truncation out"

    def body(self, request: Request, **fields: object) -> bytes:
        count = token_count(request)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return msgspec.json.encode({"id": request.request_id, "model": _model(request), **fields, "usage": usage})

    @override
    def takes_long(self, request: Request) -> bool:
        return False  # a number for each of at most a thousand inputs


class RankedResults(_Scores):
    """Jina's, Cohere's and vLLM's form."""

    inputs = "documents"

    @override
    def write(self, request: Request) -> bytes:
        results = [
            {"index": index, "relevance_score": score, **({} if text is None else {"document": {"text": text}})}
            for index, score, text in _ranked(request)
        ]
        searches = ceil(len(request.inputs) / _DOCUMENTS_PER_SEARCH)
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": searches}}
        return self.body(request, object="list", results=results, meta=meta)


class RankedData(_Scores):
    """Voyage's form."""

    inputs = "documents"

    @override
    def write(self, request: Request) -> bytes:
        data = [
            {"index": index, "relevance_score": score, **({} if text is None else {"document": text})}
            for index, score, text in _ranked(request)
        ]
        return self.body(request, object="list", data=data)


class PairScores(_Scores):
    """vLLM's form of scores."""

    inputs = "text_2"

    @override
    def write(self, request: Request) -> bytes:
        data = [
            {"index": index, "object": "score", "score": _one(scores_of(found))}
            for index, found in enumerate(_found(request))
        ]
        return self.body(request, object="list", data=data)


class Classes(_Scores):
    """vLLM's form of classes: the probability of each, and the most probable one."""

    @override
    def write(self, request: Request) -> bytes:
        data: list[dict[str, Any]] = []
        for index, found in enumerate(_found(request)):
            scores, labels = scores_of(found), found.batch.labels
            best = max(range(len(scores)), key=scores.__getitem__)
            label = labels[best] if best < len(labels) else None
            data.append({"index": index, "label": label, "probs": scores, "num_classes": len(scores)})
        return self.body(request, object="list", data=data)


def _found(request: Request) -> Sequence[Vector]:
    """Every input's scores: a request with a failure is answered with that."""
    return [outcome for outcome in request.outcomes if isinstance(outcome, Vector)]


def _model(request: Request) -> str:
    return next((found.batch.model for found in _found(request)), request.model)


def _ranked(request: Request) -> Iterator[tuple[int, float, str | None]]:
    """Index, score and, if the request asks for it, text of each document to return."""
    found, with_text = _found(request), request.scoring is not None and request.scoring.return_documents
    for index in ranked(request):
        yield index, _one(scores_of(found[index])), str(request.inputs[index]) if with_text else None


def _one(scores: Sequence[float]) -> float:
    if len(scores) != 1:
        raise FieldError(f"the model has {len(scores)} classes: POST /classify returns the score of each", "model")
    return scores[0]
