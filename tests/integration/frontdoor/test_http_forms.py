"""The forms of vLLM's and Voyage's requests and answers: each value computed from the vector itself."""

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


def of_chunks(*texts: str) -> list[list[float]]:
    """The vectors of each text's tokens alone, as the engine computes them of a span."""
    bare = [tokenizer().without_special(tokenizer().count((text,)).ids.tobytes()) for text in texts]
    lengths = np.array([len(each) // 4 for each in bare], np.int32)
    found = vectors(np.frombuffer(b"".join(bare), "<i4"), lengths, DESCRIPTION.dimensions)
    normed: list[list[float]] = (found / np.linalg.norm(found, axis=1, keepdims=True)).tolist()
    return normed


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
        ("/v1/embeddings", {"input": ["b " * 100, "c"], "late_chunking": True}, "input"),
        ("/v1/embeddings", {"input": "a", "late_chunking": True, "truncation": True}, "late_chunking"),
        ("/v1/embeddings", {"input": [1, 2], "late_chunking": True, "tokenizer": "f"}, "input"),
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
