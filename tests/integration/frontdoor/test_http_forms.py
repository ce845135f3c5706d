"""The forms of vLLM's, Voyage's and Cohere's requests and answers: each value computed from the vector itself."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from modelserver.engines.synthetic import vectors
from tests.integration.frontdoor.http_fields import PAGE, page
from tests.integration.frontdoor.test_http import OpenDoor, http_door
from tests.support.listening import DESCRIPTION, tokenizer

TEXTS = ["who wrote hamlet", "rain in spain"]


def quantized(vectors: np.ndarray[Any, np.dtype[np.float32]], dtype: str) -> list[list[int]]:
    """Voyage's and Cohere's types, by what their pages say of them."""
    int8 = np.rint(vectors / np.abs(vectors).max(axis=1, keepdims=True) * 127).astype(int)
    bits = np.packbits(vectors >= 0, axis=1).astype(int)
    found: list[list[int]] = {"int8": int8, "uint8": int8 + 128, "ubinary": bits, "binary": bits - 128}[dtype].tolist()
    return found


async def post(session: Any, path: str, body: dict[str, Any]) -> tuple[int, Any, Any]:
    async with session.post(path, json=body) as response:
        data = await response.read()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(data) if is_json else data, response.headers


async def floats(session: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    _, answer, _ = await post(session, "/v1/embeddings", {"input": TEXTS})
    return np.array([each["embedding"] for each in answer["data"]], "<f4")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
@pytest.mark.asyncio(loop_scope="module")
async def test_voyage_s_dtypes_are_numbers_of_the_vector_also_as_base64(open_door: OpenDoor, dtype: str) -> None:
    _, session = open_door
    right = quantized(await floats(session), dtype)
    body = {"input": TEXTS, "output_dtype": dtype}
    _, numbers, _ = await post(session, "/v1/embeddings", body)
    _, base64, _ = await post(session, "/v1/embeddings", {**body, "encoding_format": "base64"})
    assert [each["embedding"] for each in numbers["data"]] == right
    read_as = np.int8 if dtype in {"int8", "binary"} else np.uint8
    assert [np.frombuffer(b64decode(each["embedding"]), read_as).tolist() for each in base64["data"]] == right


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


def of_chunks(*texts: str) -> list[list[float]]:
    """The vectors of each text's tokens alone, as the engine computes them of a span."""
    bare = [tokenizer().without_special(tokenizer().count((text,)).ids.tobytes()) for text in texts]
    lengths = np.array([len(each) // 4 for each in bare], np.int32)
    found = vectors(np.frombuffer(b"".join(bare), "<i4"), lengths, DESCRIPTION.dimensions)
    normed: list[list[float]] = (found / np.linalg.norm(found, axis=1, keepdims=True)).tolist()
    return normed


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


async def test_jina_s_late_chunking_takes_the_inputs_as_chunks_of_one_document() -> None:
    async with http_door() as (_, session):
        _, answer, _ = await post(session, "/v1/embeddings", {"input": TEXTS, "late_chunking": True})
        np.testing.assert_allclose([each["embedding"] for each in answer["data"]], of_chunks(*TEXTS), atol=1e-6)
        body = {"input": TEXTS, "late_chunking": True, "encoding_format": "bytes"}
        _, data, headers = await post(session, "/v1/embeddings", body)
        assert len(json.loads(headers["metadata"])["data"]) == 2
        np.testing.assert_allclose(np.frombuffer(data, "<f4").reshape(2, -1), of_chunks(*TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/contextualizedembeddings", {"inputs": [["a", ""]]}, "inputs"),
        ("/v1/contextualizedembeddings", {"inputs": []}, "inputs"),
        ("/v1/contextualizedembeddings", {"inputs": [["a"] * 3000]}, "inputs"),
        ("/v1/contextualizedembeddings", {"inputs": [["a"], ["b " * 100, "c"]]}, "inputs[1]"),
        ("/v1/embeddings", {"input": ["b " * 100, "c"], "late_chunking": True}, "input"),
        ("/v1/embeddings", {"input": "a", "late_chunking": True, "truncation": True}, "late_chunking"),
        ("/v1/embeddings", {"input": [1, 2], "late_chunking": True, "tokenizer": "f"}, "input"),
        ("/v2/embed", {}, "texts"),
        ("/v2/embed", {"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts"),
        ("/v2/embed", {"images": ["data:image/png;base64,AA=="]}, "images"),
        ("/v2/embed", {"texts": ["a"], "input_type": "image"}, "input_type"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types"),
        ("/v2/embed", {"texts": ["a", "b " * 100], "truncate": "NONE"}, "texts[1]"),
        ("/v1/embeddings", {"input": "b " * 100, "truncation": False}, "input"),
        ("/v1/embeddings", {"input": "a", "task": "retrieval.query"}, "task"),
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


async def test_vllm_s_bytes_are_the_vectors_and_a_header_says_where() -> None:
    async with http_door() as (_, session):
        right = await floats(session)
        body = {"input": TEXTS, "encoding_format": "bytes", "embed_dtype": "float16", "endianness": "big"}
        _, data, headers = await post(session, "/v1/embeddings", {**body, "request_id": "mine"})
        assert headers["content-type"] == "application/octet-stream"
        metadata = json.loads(headers["metadata"])
        assert (metadata["id"], metadata["model"]) == ("mine", "minilm")
        for row, each in zip(right, metadata["data"], strict=True):
            assert each["shape"] == [DESCRIPTION.dimensions]
            assert (each["embed_dtype"], each["endianness"]) == ("float16", "big")
            assert data[each["start"] : each["end"]] == row.astype(">f2").tobytes()
        _, alone, headers = await post(session, "/v1/embeddings", {"input": TEXTS, "encoding_format": "bytes_only"})
        assert alone == right.tobytes()
        assert "metadata" not in headers


@pytest.mark.parametrize("body", [{"endianness": "native"}, {"endianness": "little"}, {"embed_dtype": "float16"}])
async def test_embed_dtype_and_endianness_change_no_list_of_numbers(body: dict[str, Any]) -> None:
    async with http_door() as (_, session):
        _, answer, _ = await post(session, "/v1/embeddings", {"input": TEXTS, **body})
        right = await floats(session)
        assert np.array([each["embedding"] for each in answer["data"]], "<f4").tobytes() == right.tobytes()


async def test_base64_is_big_endian_if_it_is_asked_for() -> None:
    async with http_door() as (_, session):
        body = {"input": TEXTS, "encoding_format": "base64", "endianness": "big"}
        _, answer, _ = await post(session, "/v1/embeddings", body)
        found = b"".join(b64decode(each["embedding"]) for each in answer["data"])
        assert found == (await floats(session)).astype(">f4").tobytes()


async def test_what_changes_no_vector_is_ignored_and_named() -> None:
    async with http_door() as (_, session):
        body = {"input": TEXTS, "request_id": "mine", "cache_salt": "x", "mm_processor_kwargs": {"a": 1}, "user": None}
        status, answer, headers = await post(session, "/v1/embeddings", body)
        assert (status, answer["id"], headers["x-request-id"]) == (200, "mine", "mine")
        assert headers["x-tokenbatch-ignored"] == "cache_salt, mm_processor_kwargs"
        _, _, headers = await post(session, "/v1/embeddings", {"input": TEXTS, "cache_salt": None})
        assert "x-tokenbatch-ignored" not in headers


async def test_the_page_says_of_each_field_what_becomes_of_it() -> None:
    assert PAGE.read_text(encoding="utf-8") == await page(), "run python -m tests.integration.frontdoor.http_fields"
