"""Documents ranked and texts classified over HTTP, in the forms of Jina, Cohere, Voyage and vLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from modelserver.engines.synthetic import scores
from tests.integration.aggregator.wings.ranking.http_fields import RANKS
from tests.integration.frontdoor.test_http import http_door
from tests.integration.frontdoor.test_http_forms import post
from tests.support.listening import slow_engine, tokenizer

CLASSIFIES = replace(RANKS, dimensions=3, labels=("no", "yes", "maybe"))
QUERY = "what is the capital of france"
DOCUMENTS = ["Paris is the capital.", "Berlin " * 60, "Rome", "naïve café"]


@asynccontextmanager
async def scoring(description: Any = RANKS) -> AsyncGenerator[Any]:
    async with http_door(slow_engine(description, compute=scores)) as (_, session):
        yield session


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ranking() -> AsyncGenerator[Any]:
    """A client of one door for all refusals."""
    async with scoring() as session:
        yield session


def score_of(first: str, second: str | None = None, count: int = 1) -> list[float]:
    """What the engine makes of the ids that the model's tokenizer gives, the second text cut to the model's limit."""
    reference = tokenizer()._reference  # noqa: SLF001 - the library's own, which joins pairs itself
    reference.enable_truncation(RANKS.max_input_tokens, strategy="only_second" if second else "only_first")
    ids = reference.encode(first, second).ids
    reference.no_truncation()
    found: list[float] = scores(np.array(ids, np.int32), np.array([len(ids)]), count)[0].tolist()
    return found


def best() -> list[tuple[int, float]]:
    found = [(index, score_of(QUERY, document)[0]) for index, document in enumerate(DOCUMENTS)]
    return sorted(found, key=lambda each: -each[1])


def order(results: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    return [(each["index"], pytest.approx(each["relevance_score"], abs=1e-6)) for each in results]


@pytest.mark.parametrize(("path", "shows"), [("/rerank", True), ("/v1/rerank", True), ("/v2/rerank", False)])
async def test_documents_come_in_order_of_their_scores(path: str, shows: bool) -> None:
    async with scoring() as session:
        body = {"model": "minilm", "query": QUERY, "documents": [{"text": DOCUMENTS[0]}, *DOCUMENTS[1:]]}
        status, answer, headers = await post(session, path, body)
        assert status == 200
        assert order(answer["results"]) == best()
        texts = [each.get("document") for each in answer["results"]]
        assert texts == [{"text": DOCUMENTS[index]} if shows else None for index, _ in best()]
        assert answer["id"] == headers["x-request-id"]
        assert answer["meta"]["billed_units"] == {"search_units": 1}
        assert answer["usage"]["total_tokens"] > len(DOCUMENTS)
        _, two, _ = await post(session, path, {**body, "top_n": 2, "return_documents": not shows})
        assert order(two["results"]) == best()[:2]
        assert ("document" in two["results"][0]) is not shows


VOYAGE_S: list[dict[str, Any]] = [{}, {"top_k": 3}, {"truncation": True}, {"return_documents": True}]


@pytest.mark.parametrize("fields", VOYAGE_S, ids=str)
@pytest.mark.asyncio(loop_scope="module")
async def test_one_body_has_the_lists_that_each_client_reads(ranking: Any, fields: dict[str, Any]) -> None:
    body = {"model": "minilm", "query": QUERY, "documents": DOCUMENTS, **fields}
    status, answer, _ = await post(ranking, "/v1/rerank", body)
    assert status == 200
    right = best()[: fields.get("top_k")]
    assert order(answer["results"]) == order(answer["data"]) == right
    assert [each["document"] for each in answer["results"]] == [{"text": DOCUMENTS[index]} for index, _ in right]
    shown = [DOCUMENTS[index] for index, _ in right] if "return_documents" in fields else [None] * len(right)
    assert [each.get("document") for each in answer["data"]] == shown
    assert answer["usage"]["total_tokens"] > len(DOCUMENTS)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.asyncio(loop_scope="module")
async def test_an_empty_document_is_ranked_last(ranking: Any, path: str) -> None:
    documents = ["", *DOCUMENTS, ""]
    status, answer, _ = await post(ranking, path, {"query": QUERY, "documents": documents})
    assert status == 200
    results = answer["results"]
    assert order(results[:-2]) == [(index + 1, score) for index, score in best()]
    assert [(each["index"], each["relevance_score"]) for each in results[-2:]] == [(0, 0.0), (len(DOCUMENTS) + 1, 0.0)]
    assert [each.get("error", {}).get("code") for each in results] == [None] * len(DOCUMENTS) + ["invalid_value"] * 2
    _, answer, _ = await post(ranking, path, {"query": QUERY, "documents": documents, "top_n": 2})
    assert order(answer["results"]) == [(index + 1, score) for index, score in best()[:2]]


async def test_an_empty_text_keeps_no_other_from_its_score() -> None:
    async with scoring() as session:
        _, answer, _ = await post(session, "/score", {"queries": QUERY, "documents": ["Rome", ""]})
        assert answer["data"][0] == {"index": 0, "object": "score", "score": pytest.approx(score_of(QUERY, "Rome")[0])}
        assert answer["data"][1]["score"] == 0.0
        assert "empty" in answer["data"][1]["error"]["message"]
    async with scoring(CLASSIFIES) as session:
        _, answer, _ = await post(session, "/classify", {"input": ["", "rain"]})
        assert (answer["data"][0]["label"], answer["data"][0]["probs"]) == (None, [])
        assert "empty" in answer["data"][0]["error"]["message"]
        assert answer["data"][1]["probs"] == pytest.approx(score_of("rain", count=3), abs=1e-6)


async def test_an_empty_document_is_last_beside_scores_below_0() -> None:
    async with http_door(slow_engine(RANKS, compute=lambda *given: scores(*given) - 5)) as (_, session):
        _, answer, _ = await post(session, "/rerank", {"query": QUERY, "documents": ["", *DOCUMENTS]})
        found = [each["relevance_score"] for each in answer["results"]]
        assert found == sorted(found, reverse=True)
        assert (answer["results"][-1]["index"], found[-1]) == (0, min(found))


@pytest.mark.parametrize("text_2", ["Rome", ["Rome", "naïve café"]])
async def test_pairs_get_their_scores(text_2: str | list[str]) -> None:
    async with scoring() as session:
        _, answer, _ = await post(session, "/score", {"text_1": QUERY, "text_2": text_2})
        right = [score_of(QUERY, text)[0] for text in ([text_2] if isinstance(text_2, str) else text_2)]
        assert [each["score"] for each in answer["data"]] == pytest.approx(right, abs=1e-6)
        assert [each["index"] for each in answer["data"]] == list(range(len(right)))
        _, pairs, _ = await post(session, "/v1/score", {"text_1": [QUERY, "a"], "text_2": ["Rome", "b"]})
        right = [score_of(QUERY, "Rome")[0], score_of("a", "b")[0]]
        assert [each["score"] for each in pairs["data"]] == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("names", [("queries", "documents"), ("queries", "items"), ("data_1", "data_2")])
@pytest.mark.parametrize("second", ["Rome", ["Rome", "b"], [{"content": [{"type": "text", "text": "Rome"}]}]], ids=str)
@pytest.mark.asyncio(loop_scope="module")
async def test_each_of_vllm_s_pairs_of_fields_asks_for_the_same(
    ranking: Any, names: tuple[str, str], second: Any
) -> None:
    _, answer, _ = await post(ranking, "/score", {names[0]: QUERY, names[1]: second})
    text_2 = ["Rome"] if isinstance(second, list) and isinstance(second[0], dict) else second
    _, right, _ = await post(ranking, "/score", {"text_1": QUERY, "text_2": text_2})
    assert answer["data"] == right["data"]


async def test_a_text_gets_its_classes() -> None:
    async with scoring(CLASSIFIES) as session:
        status, answer, _ = await post(session, "/classify", {"input": ["rain", "snow"]})
        assert status == 200
        for text, each in zip(("rain", "snow"), answer["data"], strict=True):
            right = score_of(text, count=3)
            assert each["probs"] == pytest.approx(right, abs=1e-6)
            assert each["label"] == CLASSIFIES.labels[int(np.argmax(right))]
            assert each["num_classes"] == 3
        status, refused, _ = await post(session, "/rerank", {"query": "a", "documents": ["b"]})
        assert (status, refused["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": ["a"] * 2049}, "documents"),
        ("/rerank", {"query": "a", "documents": ["", ""]}, "documents[0]"),
        ("/rerank", {"query": "a", "documents": ["a", {}]}, "documents[1]"),
        ("/rerank", {"query": "a", "documents": ["a", {"content": []}]}, "documents[1].content"),
        ("/rerank", {"query": "a", "documents": ["a", {"image": "b"}]}, "documents[1].image"),
        ("/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["a"], "top_n": 1, "top_k": 1}, "top_k"),
        ("/v1/rerank", {"query": "a", "documents": ["a", "b " * 100], "truncation": False}, "documents[1]"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_2"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {"queries": "a"}, "documents"),
        ("/score", {"data_2": "a"}, "data_1"),
        ("/score", {"items": "a"}, "queries"),
        ("/score", {}, "queries"),
        ("/score", {"text_1": "a", "text_2": "b", "documents": "c"}, "documents"),
        ("/score", {"queries": ["a", "b"], "items": ["a"]}, "items"),
        ("/score", {"queries": "a", "documents": ""}, "documents"),
        ("/score", {"queries": "a", "documents": "b " * 100, "truncation": False}, "documents"),
        ("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/classify", {"input": []}, "input"),
        ("/v1/embeddings", {"input": "a"}, "model"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_refusal_names_the_field_as_it_was_sent(
    ranking: Any, path: str, body: dict[str, Any], named: str
) -> None:
    status, answer, _ = await post(ranking, path, body)
    assert (status, answer["error"]["param"]) == (400, named), answer
