"""Read the bodies of the routes for scores, as Jina's, Cohere's, Voyage's and vLLM's clients send them, and answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from sys import getsizeof
from typing import Annotated, Any, ClassVar

import msgspec
from typing_extensions import override

from aggregator.errors import Code
from aggregator.request.request import MAX_INPUTS, Defaults, Failure, Request
from aggregator.request.vector import Vector
from aggregator.sources.http.answer import (
    Answer,
    AskedPriority,
    Form,
    Ignored,
    TextPart,
    checked_id,
    priority_of,
    token_count,
)
from aggregator.sources.http.errors import FieldError, error_of
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.wire.fields import MAX_INT32
from aggregator.wings.ranking.kind import RANKING
from aggregator.wings.ranking.scoring import scoring_of
from aggregator.wings.ranking.wire import TextPairs, ranked, scores_of
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.ranking.v1 import ranking_pb2 as pb

_DOCUMENTS_PER_SEARCH = 100
"""Cohere's unit: a query with up to so many documents is one search."""
_MANY_CHARACTERS = 1 << 18
"""Of documents that are returned, which take a millisecond to write: written on a thread."""
_OF_ONE_TEXT = frozenset({Code.INVALID_ARGUMENT, Code.INTERNAL})
"""Failures of an empty text, and of one that makes the engine fail: they keep no other text from its score."""

_Tokens = Annotated[int, msgspec.Meta(ge=-1, le=MAX_INT32)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """A text as Jina's and Cohere's clients wrap it, or vLLM's."""

    text: str | None = None
    content: Annotated[list[TextPart], msgspec.Meta(min_length=1, max_length=1)] | None = None


_Texts = Annotated[
    str | _Document | list[str | _Document],
    msgspec.Meta(description='a text or a list of texts, as such or as {"text": …}'),
]


def _texts(given: _Texts, field: str) -> list[str]:
    """Raises FieldError for none, too many, or an object without a text."""
    listed = given if isinstance(given, list) else [given]
    if not 0 < len(listed) <= MAX_INPUTS:
        many = f"{len(listed)}: at most {MAX_INPUTS} are taken, send several requests"
        raise FieldError(many if listed else "at least one text is needed", field)
    return [each if isinstance(each, str) else _text(each, f"{field}[{index}]") for index, each in enumerate(listed)]


def _text(document: _Document, place: str) -> str:
    if (document.text is None) is (document.content is None):
        raise FieldError('expected a text, or {"text": "a text"}', place)
    return document.text if document.content is None else document.content[0].text  # type: ignore[return-value]


class _Body(Ignored, kw_only=True, forbid_unknown_fields=True):
    """The fields of all of them."""

    remedies: ClassVar[Mapping[str, str]] = {
        "chat_template_kwargs": "the model's own template is applied; leave it out",
        "instruction": "the model's own template is applied: put it into the query",
        "max_chunks_per_doc": "max_tokens_per_doc cuts a document",
        "max_tokens_per_query": "a query is never cut: send a shorter one",
        "messages": "send texts",
        "padding": "no text is padded; leave it out",
        "rank_fields": "send each document as one text",
        "return_text": "return_documents says it",
        "texts": "send documents",
        "truncate": "truncation says it, true or false",
        "truncation_side": "a text is cut at its end; leave it out",
        "use_activation": "the model's own activation is always applied; leave it out",
    }
    """Of fields of other APIs that are not supported."""

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
    """`POST /rerank`, `/v1/rerank` and `/v2/rerank`; `top_k` is Voyage's name for `top_n`; 0 is vLLM's for all."""

    query: str
    documents: _Texts
    top_n: _Count | None = None
    top_k: _Count | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: _Count | None = None


_PAIRS = ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")


class ScoreBody(_Body, kw_only=True, forbid_unknown_fields=True):
    """`POST /score`, as vLLM's server has it: a text with another, with each of several, or several pairs.

    Two of its fields, which are one of `_PAIRS`, hold the texts.
    """

    queries: _Texts | None = None
    documents: _Texts | None = None
    items: _Texts | None = None
    data_1: _Texts | None = None
    data_2: _Texts | None = None
    text_1: _Texts | None = None
    text_2: _Texts | None = None

    def pair(self) -> tuple[str, str]:
        """The names of the two fields that hold the texts. Raises FieldError."""
        given = {name for pair in _PAIRS for name in pair if getattr(self, name) is not None}
        pair = max(_PAIRS, key=lambda each: len(given.intersection(each)))
        if given == set(pair):
            return pair
        field = next(name for name in (*pair, *sorted(given)) if (name in pair) is not (name in given))
        raise FieldError(f"expected two fields: {' or '.join(map(' and '.join, _PAIRS))}", field)


class ClassifyBody(_Body, kw_only=True, forbid_unknown_fields=True):
    """`POST /classify`, as vLLM's server has it."""

    input: _Texts


_RERANK = msgspec.json.Decoder(RerankBody)
_SCORE = msgspec.json.Decoder(ScoreBody)
_CLASSIFY = msgspec.json.Decoder(ClassifyBody)


def read_rerank(
    data: bytes, defaults: Defaults, request_id: str, *, returns_documents: bool
) -> tuple[pb.RankRequest, Answer]:
    """The message for a body, and how it is answered; `returns_documents`: unless it says. Raises FieldError."""
    asked = decode_body(_RERANK, data)
    if asked.top_n and asked.top_k:
        raise FieldError("top_k and top_n say the same: send one of them", "top_k")
    wanted = asked.return_documents
    message = pb.RankRequest(
        query=asked.query,
        documents=_texts(asked.documents, "documents"),
        top_n=asked.top_n or asked.top_k or 0,
        return_documents=returns_documents if wanted is None else wanted,
        max_tokens_per_doc=asked.max_tokens_per_doc or 0,
        **asked.fields(defaults, request_id),
    )
    return message, Ranking(asked.ignored(), returns_data=bool(wanted))


def read_score(data: bytes, defaults: Defaults, request_id: str) -> tuple[TextPairs, Answer]:
    """The message for a body, and how it is answered. Raises FieldError."""
    asked = decode_body(_SCORE, data)
    first, second = asked.pair()
    firsts, seconds = (_texts(getattr(asked, name), name) for name in (first, second))
    if len(firsts) == 1 and isinstance(getattr(asked, second), list):
        firsts *= len(seconds)
    if len(firsts) != len(seconds):
        raise FieldError(f"{len(seconds)} texts for {len(firsts)} in {first}: expected one text, or as many", second)
    answer = PairScores(asked.ignored(), second)
    return TextPairs(pb.ScoreRequest(**asked.fields(defaults, request_id)), firsts, seconds), answer


def read_classify(data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.ScoreRequest, Answer]:
    """The message for a body, and how it is answered. Raises FieldError."""
    asked = decode_body(_CLASSIFY, data)
    pairs = [pb.Pair(text=text) for text in _texts(asked.input, "input")]
    return pb.ScoreRequest(pairs=pairs, **asked.fields(defaults, request_id)), Classes(asked.ignored())


_MANY_SCORES = 4096
"""Numbers that take a millisecond to write."""
_RESULT_BYTES, _SCORE_BYTES = 250, 22
"""Of a response for each text, and for each of its scores."""


class _Scores(Answer):
    """The fields that all answers share.

    A text without a score, such as an empty one, has an `error` beside the lowest score: no form has a place for none.
    """

    needs_all = False
    names: Mapping[str, str] = {"truncate_to": "truncate_prompt_tokens"}
    remedy = "set truncation to true, or leave it out"

    def __init__(self, ignored: str, inputs: str = "input") -> None:
        super().__init__(ignored)
        self.inputs = inputs

    @override
    def failure(self, request: Request) -> Failure | None:
        failures = [outcome for outcome in request.outcomes if isinstance(outcome, Failure)]
        apart = len(failures) < len(request.outcomes) and all(
            each.code in _OF_ONE_TEXT and not each.retryable for each in failures
        )
        return None if apart else super().failure(request)

    @override
    def size_bytes(self, request: Request) -> int:
        texts = sum(map(getsizeof, request.inputs)) if scoring_of(request).return_documents else 0
        return len(request.inputs) * (_RESULT_BYTES + _SCORE_BYTES * request.options.dimensions) + 2 * texts

    def body(self, request: Request, **fields: object) -> bytes:
        count = token_count(request)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return msgspec.json.encode({"id": request.request_id, "model": _model(request), **fields, "usage": usage})

    @override
    def takes_long(self, request: Request) -> bool:
        scores = request.vector_count * request.options.dimensions  # a text has one of each class
        return scores > _MANY_SCORES or super().takes_long(request)


class Ranking(_Scores):
    """The body for the clients of every API: Jina's, Cohere's and vLLM's read `results`, Voyage's `data`.

    Each has the texts as its API has them; `returns_data`: in `data` only where they are asked for, as at Voyage.
    """

    def __init__(self, ignored: str, *, returns_data: bool) -> None:
        super().__init__(ignored, "documents")
        self._returns_data = returns_data

    @override
    def takes_long(self, request: Request) -> bool:
        documents = scoring_of(request).return_documents and sum(map(len, request.inputs)) > _MANY_CHARACTERS
        return documents or super().takes_long(request)

    @override
    def write(self, request: Request) -> bytes:
        scoring = scoring_of(request)
        results: list[dict[str, Any]] = []
        data: list[dict[str, Any]] = []
        scores = _one_each(request, "relevance_score")
        for index in ranked(request)[: scoring.top_n or None]:
            found, text = {"index": index, **scores[index]}, str(request.inputs[index])
            results.append({**found, "document": {"text": text}} if scoring.return_documents else found)
            data.append({**found, "document": text} if self._returns_data else found)
        searches = ceil(len(request.inputs) / _DOCUMENTS_PER_SEARCH)
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": searches}}
        return self.body(request, object="list", results=results, data=data, meta=meta)


class PairScores(_Scores):
    """vLLM's form of scores."""

    @override
    def write(self, request: Request) -> bytes:
        data = [{"index": index, "object": "score", **score} for index, score in enumerate(_one_each(request, "score"))]
        return self.body(request, object="list", data=data)


class Classes(_Scores):
    """vLLM's form of classes: the probability of each, and the most probable one; none of a text without a score."""

    @override
    def write(self, request: Request) -> bytes:
        data: list[dict[str, Any]] = []
        for index, found in enumerate(request.outcomes):
            label, error = None, dict[str, Any]()
            scores: Sequence[float] = ()
            if isinstance(found, Vector):
                scores, labels = scores_of(found), found.batch.labels
                best = max(range(len(scores)), key=scores.__getitem__)
                label = labels[best] if best < len(labels) else None
            elif isinstance(found, Failure):
                error = {"error": error_of(found)}
            data.append({"index": index, "label": label, "probs": scores, "num_classes": len(scores), **error})
        return self.body(request, object="list", data=data)


def _model(request: Request) -> str:
    return next((each.batch.model for each in request.outcomes if isinstance(each, Vector)), request.model)


def _one_each(request: Request, name: str) -> list[dict[str, Any]]:
    """The score of each input under its `name`; the lowest, 0 at most, and the error of one that has none."""
    scores = [_one(scores_of(each)) if isinstance(each, Vector) else None for each in request.outcomes]
    lowest = min((0.0, *(score for score in scores if score is not None)))
    return [
        {name: lowest, "error": error_of(outcome)} if isinstance(outcome, Failure) else {name: score}
        for outcome, score in zip(request.outcomes, scores, strict=True)
    ]


def _one(scores: Sequence[float]) -> float:
    if len(scores) != 1:
        raise FieldError(f"the model has {len(scores)} classes: POST /classify returns the score of each", "model")
    return scores[0]


ROUTES: Mapping[str, Form] = {
    "/rerank": (RANKING, partial(read_rerank, returns_documents=True)),
    "/v1/rerank": (RANKING, partial(read_rerank, returns_documents=True)),
    "/v2/rerank": (RANKING, partial(read_rerank, returns_documents=False)),
    "/score": (RANKING, read_score),
    "/v1/score": (RANKING, read_score),
    "/classify": (RANKING, read_classify),
}
