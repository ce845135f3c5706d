"""OpenAI's API through real processes: texts, over servers that die too, and an aggregator that stops under load."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadtest.stack.service import Aggregator, ModelServer, without_kafka
from protos.generation.v1 import generation_pb2 as pb
from tests.clients.conftest import CHAT_TEMPLATE
from tests.integration.aggregator.wings.generation.test_generation import GENERATES, PROMPT, generate, generated
from tests.integration.frontdoor.test_http_hostile import WHOLE, answer, connected, is_closed
from tests.support.listening import MODEL_FOLDER, tokenizer
from tests.support.processes import synthetic
from tests.support.scrape import metrics
from tests.support.until import until

pytestmark = pytest.mark.timeout(120)

SEED: dict[str, Any] = {"seed": 3, "max_tokens": 40}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """One that generates, with a chat template."""
    folder = tmp_path_factory.mktemp("chats")
    shutil.copytree(MODEL_FOLDER, folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    with synthetic(folder / "log", **GENERATES, MODEL__PATH=str(folder / "model")) as server:
        yield server


@pytest.fixture(scope="module")
def aggregator(chats: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregator]:
    with before(chats, folder=tmp_path_factory.mktemp("aggregator")) as started:
        yield started


def before(*servers: ModelServer, folder: Path) -> Aggregator:
    addresses = [server.address for server in servers]
    return without_kafka(folder / "aggregator.log", model=servers[0].model, servers=addresses)


@asynccontextmanager
async def client(aggregator: Aggregator) -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{aggregator.http_address}", raise_for_status=True) as session:
        yield session


async def whole(session: aiohttp.ClientSession, path: str, **body: Any) -> Any:
    async with session.post(path, json=body) as response:
        return await response.json()


async def events(session: aiohttp.ClientSession, path: str, **body: Any) -> AsyncGenerator[Any]:
    """The events of a stream, which is to end with [DONE]."""
    async with session.post(path, json={**body, "stream": True}) as response:
        assert response.content_type == "text/event-stream"
        ends = False
        async for line in response.content:
            if not line.strip():
                continue
            assert line.startswith(b"data: ")
            assert not ends, "An event came after [DONE]."
            ends = line == b"data: [DONE]\n"
            if not ends:
                yield json.loads(line.removeprefix(b"data: "))
        assert ends, "The stream ended without [DONE]."


def text_of(event: Any) -> str:
    return "".join(each["text"] if "text" in each else each["delta"].get("content", "") for each in event["choices"])


async def test_a_completion_is_the_text_of_grpc_whole_or_streamed(aggregator: Aggregator) -> None:
    by_grpc = await generate(aggregator.address, sampling=pb.Sampling(seed=3, max_tokens=40))
    async with client(aggregator) as session:
        found = await whole(session, COMPLETIONS, prompt=PROMPT, **SEED)
        streamed = [each async for each in events(session, COMPLETIONS, prompt=PROMPT, **SEED)]
        usage = {"stream_options": {"include_usage": True}}
        *_, last = [each async for each in events(session, COMPLETIONS, prompt=PROMPT, **SEED, **usage)]
        ids = tokenizer().count([PROMPT]).ids.tolist()
        (model,) = (await (await session.get("/v1/models")).json())["data"]
        by_ids = await whole(session, COMPLETIONS, prompt=ids, tokenizer=model["tokenizer"], **SEED)
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"], found["object"]) == (by_grpc.text, "length", "text_completion")
    assert by_ids["choices"] == found["choices"]
    assert found["usage"] == last["usage"]
    assert found["usage"]["completion_tokens"] == 40
    assert "".join(map(text_of, streamed)) == by_grpc.text
    assert len(streamed) > 10
    assert [each["choices"][0]["finish_reason"] for each in streamed] == [None] * (len(streamed) - 1) + ["length"]


async def test_a_chat_is_the_text_of_its_template_whole_or_streamed(aggregator: Aggregator) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    async with client(aggregator) as session:
        found = await whole(session, CHAT, messages=messages, **SEED)
        first, *rest = [each async for each in events(session, CHAT, messages=messages, **SEED)]
    (choice,) = found["choices"]
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "length")
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(map(text_of, rest)) == choice["message"]["content"] != ""
    assert {each["object"] for each in rest} == {"chat.completion.chunk"}
    tokens = (
        len(tokenizer().count(["system: be brief user: hi assistant:"]).ids) - 2
    )  # the template places special tokens
    assert found["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, 2]}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "n": 2}, "n"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "temperature": -1}, "temperature"),
        (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        (COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": "a " * 5000}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "stop_token_ids": [30522]}, "stop_token_ids"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "stop_token_ids": [30522]}, "stop_token_ids"),
        (CHAT, {"messages": [{"role": "user", "content": "a " * 5000}]}, "messages"),
        ("/v1/embeddings", {"input": "a"}, "model"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, "tools"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, "top_logprobs"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}},
            "response_format",
        ),
    ],
    ids=str,
)
async def test_what_is_not_supported_is_refused_by_its_name(
    aggregator: Aggregator, path: str, fields: dict[str, Any], param: str
) -> None:
    async with (
        aiohttp.ClientSession(f"http://{aggregator.http_address}") as session,
        session.post(path, json=fields) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["type"]) == (400, "invalid_request_error"), error
    assert error["param"] == param, error


async def test_a_stream_that_is_broken_off_frees_its_place(aggregator: Aggregator, chats: ModelServer) -> None:
    async with client(aggregator) as session:
        stream = events(session, COMPLETIONS, prompt=PROMPT, max_tokens=480)
        assert text_of(await anext(stream))
    generated_before = generated(chats)
    await asyncio.sleep(1.0)
    assert generated(chats) - generated_before < 50
    assert metrics(aggregator.metrics_address).value("tokenbatch_calls_open") == 0


async def test_streams_that_are_broken_off_at_any_moment_are_no_errors(aggregator: Aggregator) -> None:
    async def broken_off(number: int) -> None:
        stream = events(session, COMPLETIONS, prompt=f"{PROMPT} {number}", max_tokens=200)
        assert text_of(await anext(stream))
        await asyncio.sleep(number * 0.001)
        await stream.aclose()

    async with client(aggregator) as session:
        await asyncio.gather(*(broken_off(number) for number in range(100)))
    await until(lambda: metrics(aggregator.metrics_address).value("tokenbatch_calls_open") == 0)
    assert metrics(aggregator.metrics_address).value("tokenbatch_http_responses_total", status="500") == 0


async def test_an_aggregator_that_stops_under_load_answers_every_request(tmp_path: Path) -> None:
    """Callers call on their connections until an answer says that they close."""
    with (
        synthetic(tmp_path / "server.log", SYNTHETIC__FIXED_S="0.05") as server,
        before(server, folder=tmp_path) as front,
    ):
        answered = 0

        async def caller() -> None:
            nonlocal answered
            async with connected(front.http_address) as (reader, writer):
                closes = False
                while not closes:
                    writer.write(WHOLE)
                    status, headers, _ = await answer(reader)
                    assert status == 200
                    answered += 1
                    closes = headers.get("connection") == "close"
                assert await is_closed(reader)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(64):
                tasks.create_task(caller())
            await until(lambda: answered >= 64)
            assert await asyncio.to_thread(front.stop, 30.0) == 0
        logged = [fields["event"] for fields in front.news()]
    assert answered >= 64 * 2
    assert logged[-1] == "aggregator stopped"
    assert "drain timed out: unfinished records will be replayed, open calls are cancelled" not in logged


async def test_an_aggregator_that_stops_ends_its_streams_first(chats: ModelServer, tmp_path: Path) -> None:
    front = before(chats, folder=tmp_path)
    await asyncio.to_thread(front.start)
    async with client(front) as session:
        stream = events(session, COMPLETIONS, prompt=PROMPT, seed=5, max_tokens=120)
        came = [await anext(stream)]
        stopped = asyncio.create_task(asyncio.to_thread(front.stop, 30.0))
        came += [event async for event in stream]
        assert await stopped == 0
    assert len(came) > 60
    assert came[-1]["choices"][0]["finish_reason"] == "length"
