"""Both clients of the package against one server in this process: the same calls, the same answers, the same errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from tokenbatch_client import AsyncClient, Client, Closed, InputError, TokenbatchError
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.protos.generation.v1 import generation_pb2
from tokenbatch_client.protos.ranking.v1 import ranking_pb2

FAILED = pb.Status(code=grpc.StatusCode.INTERNAL.value[0], message="as the test wants it")


def embedded(request: pb.EmbedRequest) -> pb.EmbedResponse:
    """Each text's length as its vector."""
    rows = [pb.Embedding(embedding=b"\0\0\x80?" * len(each.text), token_count=1) for each in request.inputs]
    return pb.EmbedResponse(request_id=request.request_id, embeddings=rows)


def _bytes(answer: Message) -> bytes:
    return answer.SerializeToString()


class Service:
    """It is too busy for every first call of a text that says so, and answers none of a text that says `silent`."""

    def __init__(self) -> None:
        self.calls = count()
        self.asked, self.over = threading.Event(), threading.Event()

    def embed(self, request: pb.EmbedRequest, context: grpc.ServicerContext) -> pb.EmbedResponse:
        if request.inputs[0].text == "silent":
            self.wait()
        if request.inputs[0].text == "busy" and next(self.calls) % 2 == 0:
            context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        return embedded(request)

    def embed_stream(self, requests: Iterator[pb.EmbedRequest], _: object) -> Iterator[pb.EmbedResponse]:
        for request in requests:
            if request.inputs[0].text == "silent":
                self.wait()
            yield embedded(request)

    def wait(self) -> None:
        self.asked.set()
        self.over.wait()

    def models(self, *_: object) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[pb.Model(name="m")])

    def rank(self, request: ranking_pb2.RankRequest, _: object) -> ranking_pb2.RankResponse:
        best_first = reversed(range(len(request.documents)))
        return ranking_pb2.RankResponse(results=[ranking_pb2.RankedDocument(index=at, score=at) for at in best_first])

    def score(self, *_: object) -> ranking_pb2.ScoreResponse:
        return ranking_pb2.ScoreResponse(status=FAILED)

    def generate(self, request: generation_pb2.GenerateRequest, _: object) -> Iterator[generation_pb2.GenerateResponse]:
        for part in ["once upon"] if request.final_only else ["once ", "upon"]:
            yield generation_pb2.GenerateResponse(text=part)
        if request.prompt == "fail":
            yield generation_pb2.GenerateResponse(status=FAILED)

    def handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        services: dict[str, dict[str, Any]] = {
            "embedding.v1.Embeddings": {
                "Embed": (unary, self.embed, pb.EmbedRequest),
                "EmbedStream": (stream, self.embed_stream, pb.EmbedRequest),
                "ListModels": (unary, self.models, pb.ListModelsRequest),
            },
            "ranking.v1.Ranking": {
                "Rank": (unary, self.rank, ranking_pb2.RankRequest),
                "Score": (unary, self.score, ranking_pb2.ScoreRequest),
            },
            "generation.v1.Generation": {
                "Generate": (grpc.unary_stream_rpc_method_handler, self.generate, generation_pb2.GenerateRequest)
            },
        }
        for name, methods in services.items():
            made = {
                method: kind(function, asked.FromString, _bytes) for method, (kind, function, asked) in methods.items()
            }
            yield grpc.method_handlers_generic_handler(name, made)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def target(service: Service) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=list(service.handlers()))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    service.over.set()
    server.stop(None).wait()


def by_threads(target: str, call: Callable[[Any], Any]) -> Any:
    with Client(target) as client:
        found = call(client)
        return list(found) if isinstance(found, Iterator) else found


def by_asyncio(target: str, call: Callable[[Any], Any]) -> Any:
    async def main() -> Any:
        async with AsyncClient(target) as client:
            found = call(client)
            return [each async for each in found] if isinstance(found, AsyncIterator) else await found

    return asyncio.run(main())


both = pytest.mark.parametrize("by", [by_threads, by_asyncio])


@both
def test_every_call_gives_the_same_by_threads_and_by_asyncio(by: Callable[..., Any], target: str) -> None:
    assert [len(each) for each in by(target, lambda client: client.embed(["a", "bc"])).vectors()] == [1, 2]
    streamed = by(target, lambda client: client.embed_stream(list("abcde"), per_request=2))
    assert [(index, len(row.vector())) for index, row in streamed] == [(index, 1) for index in range(5)]
    ranked = by(target, lambda client: client.rank("q", ["a", "b"]))
    assert [(each.index, each.document) for each in ranked] == [(1, "b"), (0, "a")]
    assert by(target, lambda client: client.generate("x")).text == "once upon"
    assert [each.text for each in by(target, lambda client: client.stream("x"))] == ["once ", "upon"]
    assert [each.name for each in by(target, lambda client: client.models())] == ["m"]


@both
def test_a_call_that_the_service_was_too_busy_for_is_made_again(by: Callable[..., Any], target: str) -> None:
    assert len(by(target, lambda client: client.embed(["busy"])).vectors()) == 1


@both
def test_a_failed_answer_is_raised_by_both_clients(by: Callable[..., Any], target: str) -> None:
    for call in (lambda client: client.score(["a"]), lambda client: client.stream("fail")):
        with pytest.raises(TokenbatchError, match="as the test wants it"):
            by(target, call)


@both
def test_a_stream_raises_its_wrong_input_in_both_clients(by: Callable[..., Any], target: str) -> None:
    with pytest.raises(InputError, match="input 2: bytes"):
        by(target, lambda client: client.embed_stream(["a", "b", b"c"]))


async def test_the_client_of_asyncio_streams_what_comes_asynchronously(target: str) -> None:
    async def inputs() -> AsyncIterator[str]:
        for each in "abc":
            yield each

    async with AsyncClient(target) as client:
        assert [index async for index, _ in client.embed_stream(inputs())] == [0, 1, 2]


def test_the_client_for_threads_refuses_what_comes_asynchronously() -> None:
    async def inputs() -> AsyncIterator[str]:
        yield "a"

    with Client("localhost:1") as client, pytest.raises(InputError, match="inputs is async_generator"):
        client.embed_stream(inputs())


SILENT = {
    "embed": lambda client: client.embed(["silent"]),
    "embed_stream": lambda client: client.embed_stream(["silent"]),
}


@pytest.mark.parametrize("call", SILENT.values(), ids=SILENT)
def test_a_client_closed_during_a_call_of_a_thread_says_so(
    call: Callable[[Any], Any], target: str, service: Service
) -> None:
    client = Client(target)
    with ThreadPoolExecutor(1) as threads:
        called = threads.submit(lambda: list(call(client)))
        assert service.asked.wait(10)
        client.close()
        with pytest.raises(Closed, match="the client is closed"):
            called.result()


@pytest.mark.parametrize("call", SILENT.values(), ids=SILENT)
async def test_a_client_closed_during_a_call_of_asyncio_says_so(
    call: Callable[[Any], Any], target: str, service: Service
) -> None:
    client = AsyncClient(target)

    async def called() -> None:
        found = call(client)
        _ = [each async for each in found] if isinstance(found, AsyncIterator) else await found

    task = asyncio.create_task(called())
    assert await asyncio.to_thread(service.asked.wait, 10)
    await client.close()
    with pytest.raises(Closed, match="the client is closed"):
        await task


async def test_a_cancelled_call_is_cancelled_though_its_client_is_closed(target: str, service: Service) -> None:
    client = AsyncClient(target)
    task = asyncio.create_task(client.embed(["silent"]))
    assert await asyncio.to_thread(service.asked.wait, 10)
    task.cancel()
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("call", SILENT.values(), ids=SILENT)
async def test_a_closed_client_refuses_every_call(call: Callable[[Any], Any]) -> None:
    of_threads, of_asyncio = Client("here:1"), AsyncClient("here:1")
    of_threads.close()
    with pytest.raises(Closed, match="the client is closed"):
        list(call(of_threads))
    await of_asyncio.close()
    found = call(of_asyncio)
    with pytest.raises(Closed, match="the client is closed"):
        _ = [each async for each in found] if isinstance(found, AsyncIterator) else await found
