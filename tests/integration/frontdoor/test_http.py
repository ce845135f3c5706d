"""OpenAI's embeddings over HTTP: the vectors are gRPC's, and every mistake has its status and names its field."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import grpc.aio
import numpy as np
import pytest

from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.listening import Listening, ask, listening, slow_engine
from tests.support.until import until

TEXTS = ["who wrote hamlet", "rain", "Überraschung 東京", "a b c d"]
OPEN: dict[str, Any] = {"http": {"bind": "127.0.0.1:0"}}
OpenDoor = tuple[Listening, aiohttp.ClientSession]


@asynccontextmanager
async def http_door(*engines: Any, **options: Any) -> AsyncGenerator[OpenDoor]:
    """A front door that serves HTTP, and a client of it."""
    settings = {**OPEN, **options.pop("settings", {})}
    async with (
        listening(*engines, settings=settings, **options) as door,
        aiohttp.ClientSession(f"http://{door.http}") as session,
    ):
        yield door, session


async def embed(session: aiohttp.ClientSession, body: object, **options: Any) -> tuple[int, Any, Mapping[str, str]]:
    """Status, body and headers of the answer; a body that is no bytes is sent as JSON."""
    sent = BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with session.post("/v1/embeddings", data=sent, **options) as response:
        return response.status, json.loads(await response.read()), response.headers


@pytest.mark.parametrize("count", [1, 3, 2000])
async def test_vectors_are_those_of_grpc_to_the_byte(count: int) -> None:
    texts = [f"question {number}" for number in range(count)]
    async with http_door() as (door, session):
        called = [await door.stub.Embed(ask(*texts[at : at + 1000])) for at in range(0, count, 1000)]
        by_grpc = [each.embedding for answer in called for each in answer.embeddings]
        wanted = texts if count > 1 else texts[0]
        status, as_base64, _ = await embed(session, {"input": wanted, "encoding_format": "base64"})
        assert status == 200
        assert [b64decode(each["embedding"]) for each in as_base64["data"]] == by_grpc
        _, as_floats, _ = await embed(session, {"input": wanted})
        assert [np.array(each["embedding"], "<f4").tobytes() for each in as_floats["data"]] == by_grpc
        assert [each["index"] for each in as_floats["data"]] == list(range(count))


async def test_the_answer_is_in_openai_s_form_and_says_where_its_time_went() -> None:
    async with http_door() as (_, session):
        _, answer, headers = await embed(
            session, {"model": "alias", "input": TEXTS, "user": "u"}, headers={"x-request-id": "mine"}
        )
        assert {name: answer[name] for name in ("object", "model")} == {"object": "list", "model": "minilm"}
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > len(TEXTS)
        assert {each["object"] for each in answer["data"]} == {"embedding"}
        assert headers["x-request-id"] == "mine"
        assert int(headers["openai-processing-ms"]) >= 1
        durations = [headers[f"x-tokenbatch-{name}-ms"] for name in ("queued", "batched", "inference")]
        assert headers["server-timing"] == "queue;dur={}, batch;dur={}, inference;dur={}".format(*durations)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"dimensions": 32}, {"dimensions": 32}),
        ({"input_type": "query"}, {"input_type": pb.INPUT_TYPE_QUERY}),
        ({"input_type": "document"}, {"input_type": pb.INPUT_TYPE_DOCUMENT}),
        ({"normalize": False}, {"normalize": False}),
        ({"output_dtype": "int8"}, {"encoding": pb.ENCODING_INT8}),
        ({"output_dtype": "ubinary"}, {"encoding": pb.ENCODING_BINARY}),
        ({"output_dimension": 32}, {"dimensions": 32}),
        ({"embed_dtype": "float16"}, {"encoding": pb.ENCODING_FLOAT16}),
        ({"use_activation": False}, {"normalize": False}),
        ({"truncate_prompt_tokens": -1}, {"truncate": pb.TRUNCATE_END}),
        ({"truncate_prompt_tokens": 10_000}, {"truncate": pb.TRUNCATE_END}),
        ({"truncate_prompt_tokens": -1, "truncation_side": "left"}, {"truncate": pb.TRUNCATE_START}),
        ({"truncation": True}, {"truncate": pb.TRUNCATE_END}),
        ({"priority": "background", "model": "minilm"}, {"priority": pb.PRIORITY_BACKGROUND}),
        ({"dimensions": None, "user": None, "normalize": None}, {}),
    ],
    ids=str,
)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_option_asks_for_what_grpc_s_does(
    open_door: OpenDoor, fields: dict[str, Any], asked: dict[str, Any]
) -> None:
    door, session = open_door
    text = "rain " * 100 if "truncate" in asked else "rain"
    by_grpc = (await door.stub.Embed(ask(text, **asked))).embeddings[0]
    body = {"input": text, "encoding_format": "base64", **fields}
    status, answer, _ = await embed(session, body)
    assert status == 200, answer
    found = answer["data"][0]
    assert b64decode(found["embedding"]) == by_grpc.embedding
    assert found.get("scale", 0.0) == pytest.approx(by_grpc.scale)


async def test_an_input_is_truncated_to_the_tokens_asked_for() -> None:
    async with http_door() as (_, session):
        _, short, _ = await embed(session, {"input": "rain " * 8})
        for text in ("rain " * 30, "rain " * 20_000):  # the second one is read part by part
            _, answer, _ = await embed(session, {"input": text, "truncate_prompt_tokens": 10})
            assert answer["usage"]["prompt_tokens"] == 10
            assert answer["data"] == short["data"]
        _, answer, _ = await embed(session, {"input": "rain", "truncate_prompt_tokens": 10})
        assert answer["usage"]["prompt_tokens"] == 3


async def test_token_ids_are_refused_unless_it_is_known_whose_they_are() -> None:
    ids = [101, 4542, 102]
    async with http_door() as (door, session):
        by_grpc = await door.stub.Embed(pb.EmbedRequest(inputs=[pb.Input(token_ids=pb.TokenIds(ids=ids))]))
        for wanted in (ids, [ids]):
            status, answer, _ = await embed(session, {"input": wanted})
            assert (status, answer["error"]["param"]) == (400, "input")
            assert "check_embedding_ctx_length=False" in answer["error"]["message"]
            named = {"input": wanted, "tokenizer": "f", "encoding_format": "base64"}
            status, answer, _ = await embed(session, named)
            assert b64decode(answer["data"][0]["embedding"]) == by_grpc.embeddings[0].embedding
        status, answer, _ = await embed(session, {"input": ids, "tokenizer": "another's"})
        assert (status, answer["error"]["param"]) == (400, "tokenizer")
    trusting = {"http": {**OPEN["http"], "trusts_token_ids": True}}
    async with http_door(settings=trusting) as (_, session):
        status, answer, _ = await embed(session, {"input": ids, "encoding_format": "base64"})
        assert b64decode(answer["data"][0]["embedding"]) == by_grpc.embeddings[0].embedding


BAD: list[tuple[str, object, int, str | None, str]] = [
    ("not JSON", b'{"input": nope}', 400, None, "not JSON"),
    ("not UTF-8", b'{"input": "\xff"}', 400, None, "not JSON"),
    ("half a surrogate", b'{"input": "\\ud800"}', 400, "input", "half a character"),
    ("empty", b"", 400, None, "not JSON"),
    ("no object", [1], 400, None, "expected an object with input, got a list"),
    ("deep lists", b'{"input":' + b"[" * 10_000, 400, None, "not JSON"),
    ("deeper lists", b'{"input":' + b"[" * 100_000, 400, None, "too many texts, lists and objects"),
    ("deep objects", b'{"input":' + b'{"a":' * 10_000, 400, None, "not JSON"),
    ("deeper objects", b'{"input":' + b'{"a":' * 100_000, 400, None, "more than 16384"),
    ("deep at the top", b"[" * 10_000, 400, None, "expected an object with input, got a list"),
    ("no input", {"model": "minilm"}, 400, "input", "input is missing: expected a text or a list of texts"),
    ("null", {"input": None}, 400, "input", "expected a text or a list of texts"),
    ("an object", {"input": {"text": "a"}}, 400, "input", "expected a text or a list of texts"),
    ("a number", {"input": 5}, 400, "input", "expected a text or a list of texts"),
    ("mixed", {"input": ["a", 5]}, 400, "input[1]", "input[1]: expected a text, got a whole number"),
    ("nested texts", {"input": [["a"]]}, 400, "input", "a list of texts within a list"),
    ("an empty list", {"input": []}, 400, "input", "at least one"),
    ("an empty text", {"input": ""}, 400, "input", "empty"),
    ("one empty text", {"input": ["a", ""]}, 400, "input[1]", "input[1]: the input is empty"),
    ("3,000 inputs", {"input": ["a"] * 3000}, 400, "input", "at most 2048"),
    ("a million empty texts", {"input": [""] * 1_000_000}, 400, None, "more than 16384 texts and names"),
    ("a field 300,000 times", b"{" + b'"input":"a",' * 300_000 + b'"input":"a"}', 400, None, "more than 16384"),
    ("10,000 lists", b'{"input":[' + b"[]," * 9_999 + b'[]],"tokenizer":"f"}', 400, "input", "at most 2048"),
    ("a million lists", b'{"input":[' + b"[]," * 999_999 + b'[]],"tokenizer":"f"}', 400, None, "too many texts, lists"),
    ("ignored lists", b'{"input":"a","metadata":[' + b"[]," * 999_999 + b"[]]}", 400, None, "too many texts, lists"),
    ("two million ids", b'{"input":[' + b"1," * 1_999_999 + b'1],"tokenizer":"f"}', 400, "input", "1048576 token ids"),
    ("too long", {"input": ["a", "b " * 100]}, 400, "input[1]", "truncate_prompt_tokens"),
    ("unknown model", {"input": "a", "model": "gpt"}, 404, "model", "not configured"),
    ("a model of another type", {"input": "a", "model": 5}, 400, "model", "model: expected a text, got a whole number"),
    (
        "dimensions as text",
        {"input": "a", "dimensions": "9"},
        400,
        "dimensions",
        "dimensions: expected a whole number from 1 to 2147483647, got a text",
    ),
    ("dimensions that it has not", {"input": "a", "dimensions": 9}, 400, "dimensions", "dimensions 9"),
    ("dimensions below 1", {"input": "a", "dimensions": 0}, 400, "dimensions", "expected a whole number from 1 to"),
    (
        "an unknown format",
        {"input": "a", "encoding_format": "hex"},
        400,
        "encoding_format",
        "expected one of base64, bytes, bytes_only, float, got 'hex'",
    ),
    ("an unknown field", {"input": "a", "wings": 2}, 400, "wings", "unknown field wings: leave it out"),
    (
        "two dtypes",
        {"input": "a", "output_dtype": ["int8", "binary"]},
        400,
        "output_dtype",
        "expected one of binary, float, int8, ubinary, uint8, got a list",
    ),
    ("truncated to nothing", {"input": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens", "1 and more"),
    (
        "truncated below",
        {"input": "a", "truncate_prompt_tokens": -2},
        400,
        "truncate_prompt_tokens",
        "a whole number from -1 to",
    ),
    ("ids below 0", {"input": [-1], "tokenizer": "f"}, 400, "input[0]", "a whole number from 0 to"),
    ("ids above 31 bits", {"input": [2**31], "tokenizer": "f"}, 400, "input[0]", "to 2147483647"),
    ("a long unknown field", {"input": "a", "w" * 100_000: 2}, 400, f"{'w' * 300}…", "unknown field"),
]


@pytest.mark.parametrize(
    ("body", "status", "param", "words"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_bad_input_is_named(
    open_door: OpenDoor, body: object, status: int, param: str | None, words: str
) -> None:
    door, session = open_door
    found, answer, headers = await embed(session, body)
    error = answer["error"]
    assert (found, error["param"]) == (status, param), error
    assert words in error["message"]
    assert len(error["message"]) < 400
    assert error["type"] == "invalid_request_error"
    assert headers["x-should-retry"] == "false"
    assert (await embed(session, {"input": "a"}))[0] == 200, "the same connection serves the next one"
    assert door.held_tokens == 0


async def test_a_large_list_of_texts_full_of_quotes_is_taken() -> None:
    texts = ['a "quoted" [word], and a backslash \\', '\\"', '"', "\\\\"] * 512
    async with http_door() as (_, session):
        status, answer, _ = await embed(session, {"input": texts, "encoding_format": "base64"})
        assert (status, len(answer.get("data", ()))) == (200, 2048), answer


async def test_of_duplicate_keys_the_last_one_counts() -> None:
    async with http_door() as (_, session):
        _, twice, _ = await embed(session, b'{"input":"rain","input":"snow"}')
        _, once, _ = await embed(session, {"input": "snow"})
        assert twice["data"] == once["data"]


NO_ROUTE = [
    ("GET", "/v1/nothing", 404, "unknown_url"),
    ("GET", "/v1/embeddings", 405, "method_not_allowed"),
    ("POST", "/v1/models", 405, "method_not_allowed"),
    ("GET", "/v1/models/nothing", 404, "model_not_found"),
]


async def test_what_is_no_route_is_answered_in_openai_s_form() -> None:
    async with http_door() as (_, session):
        for method, path, status, code in NO_ROUTE:
            async with session.request(method, path) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (status, code)
                if status == 405:
                    assert response.headers["allow"] == ("POST" if method == "GET" else "GET, HEAD")
        async with session.post("/v1/embedding") as response:
            assert (await response.json())["detail"] == (
                "there is no POST '/v1/embedding': did you mean /v1/embeddings?"
            )
        async with session.post("/wings" + "w" * 500) as response:
            message = (await response.json())["detail"]
            assert message.endswith(", /docs"), "every route is named"
            assert len(message) < 400
        for path in ("/health", "/v1/models", "/v1/models/alias"):
            async with session.get(path) as wanted, session.head(path) as response:
                assert (response.status, await response.read()) == (200, b"")
                assert response.headers["content-length"] == str(len(await wanted.read()))
        async with session.get("/v1/models") as response:
            listed = (await response.json())["data"]
        async with session.get("/v1/models/alias") as response:
            assert [await response.json()] == listed
        assert (listed[0]["id"], listed[0]["tokenizer"], listed[0]["max_model_len"]) == ("minilm", "f", 64)


async def test_a_deadline_comes_from_either_header() -> None:
    for header in ("x-request-timeout", "x-stainless-timeout"):
        async with http_door(slow_engine(slowness=2000)) as (door, session):
            status, answer, headers = await embed(session, {"input": "a"}, headers={header: "0.2"})
            assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
            assert "x-request-timeout" in answer["error"]["message"]
            assert headers["x-should-retry"] == "false"
            await until(lambda: not door.held_tokens)
    async with http_door() as (_, session):
        for wrong in ("soon", "-1", "nan", "inf", "0"):
            status, answer, _ = await embed(session, {"input": "a"}, headers={"x-request-timeout": wrong})
            assert (status, answer["error"]["param"]) == (400, "x-request-timeout")
            assert answer["error"]["message"] == f"x-request-timeout is '{wrong}': expected a number of seconds above 0"
        for of_library in ("0", "0.0", "-1", "nan", "inf", "soon", ""):
            status, *_ = await embed(session, {"input": "a"}, headers={"x-stainless-timeout": of_library})
            assert status == 200, of_library


@pytest.mark.parametrize("encoding", ["identity", "Identity", "IDENTITY ", ""])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_body_that_is_sent_as_it_is_may_say_so(open_door: OpenDoor, encoding: str) -> None:
    _, session = open_door
    assert (await embed(session, {"input": "a"}, headers={"content-encoding": encoding}))[0] == 200


async def test_an_overload_says_when_to_come_again() -> None:
    async with http_door(slow_engine(slowness=50), max_held_tokens=60) as (_, session):
        answers = await asyncio.gather(*(embed(session, {"input": f"a b c {number}"}) for number in range(30)))
        refused = [(answer, headers) for status, answer, headers in answers if status == 429]
        assert refused
        assert {status for status, _, _ in answers} == {200, 429}
        for answer, headers in refused:
            assert answer["error"]["code"] == "rate_limit_exceeded"
            assert headers["x-should-retry"] == "true"
            assert 0 < int(headers["retry-after-ms"]) <= 1000 * int(headers["retry-after"])


async def test_nobody_gets_in_without_a_credential_and_it_names_the_tenant(tmp_path: Any) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("team-a secret-of-a\n")
    settings = {"grpc": {"authentication": {"tokens_file": tokens}}}
    async with http_door(settings=settings) as (_, session):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic c2VjcmV0LW9mLWE="}):
            status, answer, told = await embed(session, {"input": "a"}, headers=headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert told["www-authenticate"] == "Bearer"
            async with session.get("/v1/models", headers=headers) as response:
                assert response.status == 401
        right = {"authorization": "Bearer secret-of-a", "x-tenant": "team-b"}
        status, _, _ = await embed(session, {"input": "a", "user": "team-c"}, headers=right)
        assert status == 200
        async with session.get("/health") as response:
            assert response.status == 200


async def test_grpc_and_http_share_one_bound_of_calls() -> None:
    async with http_door(slow_engine(slowness=2000), limits={"max_calls": 3}) as (door, session):
        held = [door.stub.Embed(ask(f"text {number}")) for number in range(2)]
        await until(lambda: door.figure("tokenbatch.calls.open") == 2)
        status, answer, _ = await embed(session, {"input": "a"})
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        for call in held:
            call.cancel()
        for call in held:
            with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
                await call
