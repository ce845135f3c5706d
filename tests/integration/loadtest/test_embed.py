"""`loadtest embed` against a real gRPC server that answers as each test says."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from loadtest.__main__ import main
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc

Reply = Callable[[pb.EmbedRequest], pb.EmbedResponse]


class Answering(embedding_pb2_grpc.EmbeddingsServicer):
    """Answers no call before `at_once` were under way together."""

    def __init__(self, reply: Reply, at_once: int) -> None:
        self._reply = reply
        self._at_once = at_once
        self._met = asyncio.Event()
        self.calls = 0
        self._under_way = 0
        self.most_at_once = 0

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        self.calls += 1
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        if self._under_way == self._at_once:
            self._met.set()
        await self._met.wait()
        await asyncio.sleep(0.01)
        self._under_way -= 1
        if request.inputs[0].text == "refuse":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        return self._reply(request)

    async def EmbedStream(self, request_iterator: Any, context: Any) -> AsyncGenerator[pb.EmbedResponse]:
        """Answers the latest first, as soon as four wait; ends when one of the four is to be refused.

        Not before: a client that is writing then finds INTERNAL instead of the code, https://github.com/grpc/grpc/issues/36066.
        """
        self.calls += 1
        waiting: list[pb.EmbedRequest] = []
        async for request in request_iterator:
            waiting.append(request)
            self.most_at_once = max(self.most_at_once, len(waiting))
            if len(waiting) == 4:
                if any(each.inputs[0].text == "refuse" for each in waiting):
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
                while waiting:
                    yield self._reply(waiting.pop())
        while waiting:
            yield self._reply(waiting.pop())

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> Any:
        raise NotImplementedError


def embedded(request: pb.EmbedRequest) -> pb.EmbedResponse:
    response = pb.EmbedResponse(request_id=request.request_id)
    for each in request.inputs:
        vector = np.array([len(each.text), 1], "<f4").tobytes()
        response.embeddings.add(embedding=vector, dimensions=2, encoding=pb.ENCODING_FLOAT32, token_count=3)
    return response


@asynccontextmanager
async def serving(reply: Reply, at_once: int = 1) -> AsyncGenerator[tuple[Answering, str]]:
    server, servicer = grpc.aio.server(), Answering(reply, at_once)
    embedding_pb2_grpc.add_EmbeddingsServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"localhost:{port}"
    finally:
        await server.stop(None)


async def embed(*options: str) -> int:
    """In a process of its own: a grpc.aio client and server in two threads of one are not supported."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "loadtest", "embed", *options)
    return await process.wait()


async def test_every_line_comes_back_with_its_vector(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join("x" * length for length in range(1, 11)))
    out, summary = tmp_path / "replies.npz", tmp_path / "summary.json"
    async with serving(embedded, at_once=2) as (servicer, target):
        code = await embed(
            "--target", target, "--file", str(tmp_path / "lines"), "--concurrency", "2", "--per-call", "3",
            "--out", str(out), "--json", str(summary),
        )  # fmt: skip
    assert code == 0
    assert (servicer.calls, servicer.most_at_once) == (4, 2)
    with np.load(out) as replies:
        assert replies["embedding"][:, 0].tolist() == list(range(1, 11))
        assert replies["line"].tolist() == list(range(10))
    assert json.loads(summary.read_text())["tokens"] == 30


async def test_a_refused_call_and_an_answer_that_misses_one_give_their_codes(tmp_path: Path) -> None:
    def forgets_one(request: pb.EmbedRequest) -> pb.EmbedResponse:
        response = embedded(request)
        del response.embeddings[-1]
        return response

    (tmp_path / "lines").write_text("refuse\nb\nc\nd\n")
    summary = tmp_path / "summary.json"
    async with serving(forgets_one) as (_, target):
        code = await embed(
            "--target", target, "--file", str(tmp_path / "lines"), "--per-call", "2", "--json", str(summary)
        )
    assert code == 1
    figures = json.loads(summary.read_text())
    assert (figures["sent"], figures["lost"]) == (4, 0)
    assert figures["errors"] == {"RESOURCE_EXHAUSTED": 2, "UNKNOWN": 2}


async def test_a_stream_is_answered_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join("x" * length for length in range(1, 23)))
    out = tmp_path / "replies.npz"
    async with serving(embedded) as (servicer, target):
        code = await embed(
            "--stream", "--target", target, "--file", str(tmp_path / "lines"), "--concurrency", "4", "--per-call", "2",
            "--out", str(out),
        )  # fmt: skip
    assert code == 0
    assert (servicer.calls, servicer.most_at_once) == (1, 4)
    with np.load(out) as replies:
        assert replies["embedding"][:, 0].tolist() == list(range(1, 23))


async def test_queries_go_on_by_a_new_stream_when_one_ends(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join(["fine"] * 4 + ["refuse"] + ["fine"] * 7))
    summary = tmp_path / "summary.json"
    async with serving(embedded) as (servicer, target):
        code = await embed(
            "--stream", "--target", target, "--file", str(tmp_path / "lines"), "--concurrency", "4",
            "--json", str(summary),
        )  # fmt: skip
    assert code == 1
    assert servicer.calls == 2
    figures = json.loads(summary.read_text())
    assert (figures["sent"], figures["lost"]) == (12, 0)
    assert figures["errors"] == {"RESOURCE_EXHAUSTED": 4}


def test_a_target_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--target", "localhost:1", "--timeout-s", "0.3"]) == 2
    assert "nothing answers gRPC at localhost:1" in capsys.readouterr().err
