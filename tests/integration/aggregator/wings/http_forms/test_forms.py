"""Cohere's and Voyage's forms of requests and answers: each value computed from the vector itself."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from tests.integration.frontdoor.test_http import OpenDoor, http_door
from tests.integration.frontdoor.test_http_forms import TEXTS, floats, of_chunks, post, quantized


async def test_cohere_gets_every_type_at_once() -> None:
    async with http_door() as (_, session):
        right = await floats(session)
        types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
        body = {"model": "minilm", "texts": TEXTS, "embedding_types": types, "input_type": "clustering"}
        status, answer, headers = await post(session, "/v2/embed", body)
        assert status == 200
        found = answer["embeddings"]
        assert list(found) == types
        assert np.array(found["float"], "<f4").tobytes() == right.tobytes()
        assert b"".join(map(b64decode, found["base64"])) == right.tobytes()
        for dtype in ("int8", "uint8", "binary", "ubinary"):
            assert found[dtype] == quantized(right, dtype)
        assert (answer["response_type"], answer["texts"]) == ("embeddings_by_type", TEXTS)
        assert answer["id"] == headers["x-request-id"]
        _, by_openai, _ = await post(session, "/v1/embeddings", {"input": TEXTS})
        assert answer["meta"]["billed_units"]["input_tokens"] == by_openai["usage"]["total_tokens"]


async def test_version_1_of_cohere_s_api_gets_a_list_of_floats_or_each_type() -> None:
    async with http_door() as (_, session):
        right = await floats(session)
        body = {"model": "minilm", "texts": TEXTS, "input_type": "clustering", "truncate": "END"}
        status, answer, headers = await post(session, "/v1/embed", body)
        assert (status, answer["response_type"], answer["texts"]) == (200, "embeddings_floats", TEXTS)
        assert np.array(answer["embeddings"], "<f4").tobytes() == right.tobytes()
        assert (answer["id"], answer["meta"]["api_version"]) == (headers["x-request-id"], {"version": "1"})
        _, answer, _ = await post(session, "/v1/embed", {**body, "embedding_types": ["float", "int8"]})
        assert (answer["response_type"], list(answer["embeddings"])) == ("embeddings_by_type", ["float", "int8"])
        assert answer["embeddings"]["int8"] == quantized(right, "int8")
        _, answer, _ = await post(session, "/v2/embed", body)
        assert (answer["response_type"], list(answer["embeddings"])) == ("embeddings_by_type", ["float"])


COHERE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"input_type": "search_query"}, {"input_type": "query"}),
    ({"input_type": "search_document"}, {"input_type": "document"}),
    ({"output_dimension": 32}, {"dimensions": 32}),
    ({"max_tokens": 5}, {"truncate_prompt_tokens": 5}),
    ({"max_tokens": 5, "truncate": "START"}, {"truncate_prompt_tokens": 5, "truncation_side": "left"}),
]


@pytest.mark.parametrize(("cohere", "openai"), COHERE, ids=str)
@pytest.mark.asyncio(loop_scope="module")
async def test_cohere_s_options_ask_for_what_openai_s_do(
    open_door: OpenDoor, cohere: dict[str, Any], openai: dict[str, Any]
) -> None:
    _, session = open_door
    text = "one two three four five six seven"
    inputs = [{"content": [{"type": "text", "text": text}]}]
    _, answer, _ = await post(session, "/v2/embed", {"inputs": inputs, **cohere})
    _, right, _ = await post(session, "/v1/embeddings", {"input": text, **openai})
    _, plain, _ = await post(session, "/v1/embeddings", {"input": text})
    assert answer["embeddings"]["float"] == [right["data"][0]["embedding"]] != [plain["data"][0]["embedding"]]


async def test_voyage_s_documents_are_answered_chunk_by_chunk() -> None:
    async with http_door() as (_, session):
        path = "/v1/contextualizedembeddings"
        status, answer, _ = await post(session, path, {"inputs": [TEXTS, ["a third"]], "input_type": "document"})
        assert (status, answer["object"], answer["model"]) == (200, "list", "minilm")
        assert [each["index"] for each in answer["data"]] == [0, 1]
        found = [[chunk["embedding"] for chunk in each["data"]] for each in answer["data"]]
        np.testing.assert_allclose(found[0], of_chunks(*TEXTS), atol=1e-6)
        np.testing.assert_allclose(found[1], of_chunks("a third"), atol=1e-6)
        assert [chunk["index"] for chunk in answer["data"][0]["data"]] == [0, 1]
        _, query, _ = await post(session, path, {"inputs": [["rain"]], "input_type": "query"})
        _, plain, _ = await post(session, "/v1/embeddings", {"input": "rain", "input_type": "query"})
        assert query["data"][0]["data"][0]["embedding"] == plain["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/contextualizedembeddings", {"inputs": [["a", ""]]}, "inputs"),
        ("/v1/contextualizedembeddings", {"inputs": []}, "inputs"),
        ("/v1/contextualizedembeddings", {"inputs": [["a"] * 3000]}, "inputs"),
        ("/v1/contextualizedembeddings", {"inputs": [["a"], ["b " * 100, "c"]]}, "inputs[1]"),
        ("/v2/embed", {}, "texts"),
        ("/v2/embed", {"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts"),
        ("/v2/embed", {"images": ["data:image/png;base64,AA=="]}, "images"),
        ("/v2/embed", {"texts": ["a"], "input_type": "image"}, "input_type"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types"),
        ("/v2/embed", {"texts": ["a", "b " * 100], "truncate": "NONE"}, "texts[1]"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_refused_is_named_where_each_client_looks(
    open_door: OpenDoor, path: str, body: dict[str, Any], named: str
) -> None:
    _, session = open_door
    status, answer, _ = await post(session, path, body)
    assert status == 400
    assert str(answer["error"]["param"]).startswith(named)
    assert answer["error"]["message"] == answer["detail"] == answer["message"]
