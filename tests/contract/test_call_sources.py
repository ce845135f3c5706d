"""What the pipeline and callers may rely on in a source whose callers wait: gRPC's and HTTP's."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp
import grpc.aio
import numpy as np
import pytest
import pytest_asyncio
from typing_extensions import override

from aggregator.admission.models import Models
from aggregator.errors import Code
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.registry import DOORS, ROUTES, SERVICES
from aggregator.request.request import Failure, Request
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.work_item import Priority, Task
from aggregator.settings.aggregator import GrpcSettings, HttpSettings
from aggregator.sources.calls.calls import CallSource, Served
from aggregator.sources.calls.load import Limits, Load
from aggregator.sources.grpc.listener import GrpcSource
from aggregator.sources.http.errors import described
from aggregator.sources.http.listener import HttpSource
from aggregator.tokenizers.counting import Counting
from k8s.pod.metrics_buffer import MetricsBuffer
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.support.fake_source import reply_all, take

MATRIX = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
MAX_CALLS = 16
CODES = [
    Code.OUT_OF_RANGE,
    Code.NOT_FOUND,
    Code.RESOURCE_EXHAUSTED,
    Code.UNAVAILABLE,
    Code.DEADLINE_EXCEEDED,
    Code.INTERNAL,
]


class NoModels(Models):
    """No model is served; every search for one fails."""

    def __init__(self) -> None:
        super().__init__([], DispatchPolicy(), None, Counting)

    @override
    def dimensions(self, name: str) -> int:
        del name
        return 2


class Callers(Protocol):
    """Calls one source: `call` gives its vectors, or Failed."""

    source: CallSource

    async def call(self, *texts: str, timeout_s: float = 60.0) -> list[bytes]: ...


class Failed(Exception):
    """The status that a caller got."""


class GrpcCallers:
    def __init__(self, source: GrpcSource, channel: grpc.aio.Channel) -> None:
        self.source: CallSource = source
        self._stub = pb_grpc.EmbeddingsStub(channel)

    async def call(self, *texts: str, timeout_s: float = 60.0) -> list[bytes]:
        request = pb.EmbedRequest(inputs=[pb.Input(text=text) for text in texts])
        try:
            answer = await self._stub.Embed(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise Failed(error.code().value[0]) from error
        return [each.embedding for each in answer.embeddings]


class HttpCallers:
    def __init__(self, source: HttpSource, session: aiohttp.ClientSession) -> None:
        self.source: CallSource = source
        self._session = session

    async def call(self, *texts: str, timeout_s: float = 60.0) -> list[bytes]:
        body = {"input": texts, "encoding_format": "base64"}
        async with self._session.post(
            "/v1/embeddings", json=body, headers={"x-request-timeout": str(timeout_s)}
        ) as response:
            answer = json.loads(await response.read())
            if response.status != 200:
                raise Failed(response.status)
        return [base64.b64decode(each["embedding"]) for each in answer["data"]]


def expected(code: Code, kind: type[Callers]) -> int:
    """How a caller sees it."""
    return int(code) if kind is GrpcCallers else described(Failure(code, ""))[0]


GIVEN_UP: list[Request] = []


@asynccontextmanager
async def grpc_callers(served: Served) -> AsyncGenerator[Callers]:
    source = GrpcSource(GrpcSettings(bind="127.0.0.1:0"), served, SERVICES)
    await source.prepare(1.0)
    async with grpc.aio.insecure_channel(source.address) as channel:
        yield GrpcCallers(source, channel)
    await source.stop(0)


@asynccontextmanager
async def http_callers(served: Served) -> AsyncGenerator[Callers]:
    settings = HttpSettings(bind="127.0.0.1:0")
    source = HttpSource(settings, GrpcSettings().tls, served, ROUTES, doors=DOORS)
    await source.prepare(1.0)
    async with aiohttp.ClientSession(f"http://{source.address}") as session:
        yield HttpCallers(source, session)
    await source.stop(0)


@pytest_asyncio.fixture(params=[grpc_callers, http_callers], ids=["grpc", "http"])
async def callers(request: pytest.FixtureRequest) -> AsyncIterator[Callers]:
    """Each in turn."""
    GIVEN_UP.clear()
    served = Served(
        default_model="m",
        models=NoModels(),
        give_up=GIVEN_UP.append,
        load=Load(Limits(max_calls=MAX_CALLS), Metrics(MetricsBuffer())),
        authentication=None,
        tracing=Tracing(),
    )
    async with request.param(served) as made:
        yield made


def computed(request: Request) -> Request:
    """Every input gets a row."""
    batch = CompletedBatch("b", "m", "r1", 0, MATRIX, 0.0, 0.0)
    for index in range(len(request.inputs)):
        request.complete_input(index, Vector(batch, index, 3, 0.0))
    return request


async def test_a_call_comes_as_it_was_sent_and_its_caller_gets_its_vectors(callers: Callers) -> None:
    calling = asyncio.create_task(callers.call("one", "two", "three"))
    (request,) = await take(callers.source, 1)
    assert (list(request.inputs), request.model, request.tenant) == (["one", "two", "three"], "m", "")
    assert (request.priority, request.task) == (Priority.INTERACTIVE, Task.EMBED)
    assert request.source is callers.source
    assert callers.source.refusable
    assert not calling.done()
    await reply_all(callers.source, [computed(request)])
    assert await calling == [row.tobytes() for row in MATRIX[:3]]


@pytest.mark.parametrize("code", CODES)
async def test_a_caller_gets_the_code_of_its_failure(callers: Callers, code: Code) -> None:
    calling = asyncio.create_task(callers.call("one"))
    (request,) = await take(callers.source, 1)
    request.fail(Failure(code, "why"))
    await reply_all(callers.source, [request])
    with pytest.raises(Failed, match=f"^{expected(code, type(callers))}$"):
        await calling


async def test_callers_get_their_own_answers_in_any_order(callers: Callers) -> None:
    calling = [asyncio.create_task(callers.call(*["x"] * (number % 3 + 1))) for number in range(6)]
    requests = await take(callers.source, 6)
    for request in reversed(requests):
        await reply_all(callers.source, [computed(request)])
    assert [len(await each) for each in calling] == [1, 2, 3, 1, 2, 3]


async def test_a_caller_that_goes_away_is_given_up(callers: Callers) -> None:
    calling = asyncio.create_task(callers.call("one"))
    requests = await take(callers.source, 1)
    calling.cancel()
    async with asyncio.timeout(60):
        while requests != GIVEN_UP:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_a_deadline_ends_the_call_and_is_the_request_s(callers: Callers) -> None:
    calling = asyncio.create_task(callers.call("one", timeout_s=1.0))
    (request,) = await take(callers.source, 1)
    assert 0 < request.deadline_s - request.received_s <= 1.02  # gRPC rounds a time-out up on its way
    with pytest.raises(Failed, match=f"^{expected(Code.DEADLINE_EXCEEDED, type(callers))}$"):
        await calling


async def test_more_calls_than_the_limit_are_refused_and_the_rest_answered(callers: Callers) -> None:
    calling = [asyncio.create_task(callers.call("one")) for _ in range(3 * MAX_CALLS // 2)]
    requests = await take(callers.source, 1)
    async with asyncio.timeout(60):
        while sum(each.done() for each in calling) < MAX_CALLS // 2:  # noqa: ASYNC110 - a task calls nobody
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    refused = [each for each in calling if each.done()]
    assert {str(each.exception()) for each in refused} == {str(expected(Code.RESOURCE_EXHAUSTED, type(callers)))}
    requests += await take(callers.source, len(calling) - len(refused) - len(requests))
    await reply_all(callers.source, [computed(request) for request in requests])
    assert [len(await each) for each in calling if each not in refused] == [1] * len(requests)


async def test_a_stop_answers_what_is_open(callers: Callers) -> None:
    calling = [asyncio.create_task(callers.call("one")) for _ in range(4)]
    requests = await take(callers.source, 4)
    stopping: Any = asyncio.create_task(callers.source.stop(60.0))
    await asyncio.sleep(0.2)
    await reply_all(callers.source, [computed(request) for request in requests])
    assert [len(await each) for each in calling] == [1] * 4
    await asyncio.wait_for(stopping, 60)
