"""What a fake engine and a model server behind gRPC must do alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import grpc
import numpy as np
import pytest

from aggregator.errors import BatchFailed, EngineFailed, ModelServerBusy, ModelServerLost
from aggregator.model_server import ModelServer
from aggregator.registry import KINDS
from aggregator.replicas.client import GrpcModelServer, ModelServerClient
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_engine import FakeEngine, batch
from tests.support.fake_model_server import FakeModelServer, Refusal, embed_response

TIMEOUT_S = 30.0
BATCH = batch([1, 10, 2], [1, 11, 12, 2], [1, 10, 2])


@dataclass(frozen=True)
class Subject:
    """An engine, how to make its batches fail, and how to make it hang."""

    engine: ModelServer
    fail_with: Callable[[type[BatchFailed]], None]
    hang: asyncio.Event


@asynccontextmanager
async def fake() -> AsyncGenerator[Subject]:
    engine = FakeEngine()
    yield Subject(engine, lambda error: engine.failures.append(error("as the test wants it")), engine.gate)


@asynccontextmanager
async def over_grpc() -> AsyncGenerator[Subject]:
    codes: dict[type[BatchFailed], grpc.StatusCode] = {
        ModelServerBusy: grpc.StatusCode.RESOURCE_EXHAUSTED,
        ModelServerLost: grpc.StatusCode.UNAVAILABLE,
        EngineFailed: grpc.StatusCode.INTERNAL,
    }
    failures: list[grpc.StatusCode] = []

    def answer(request: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        if failures:
            raise Refusal(failures[0])
        return embed_response(request)

    server = await FakeModelServer().start()
    server.answer = answer
    client = ModelServerClient(server.address, KINDS)
    engine = GrpcModelServer(client, await client.describe(TIMEOUT_S))
    yield Subject(engine, lambda error: failures.append(codes[error]), server.open)
    server.open.set()
    await client.close()
    await server.kill()


@pytest.fixture(params=[fake, over_grpc], ids=["fake", "grpc"])
async def subject(request: pytest.FixtureRequest) -> AsyncGenerator[Subject]:
    opened: Callable[[], AbstractAsyncContextManager[Subject]] = request.param
    async with opened() as subject:
        yield subject


async def test_each_query_has_its_row_whatever_it_is_sent_with(subject: Subject) -> None:
    together = await subject.engine.embed(BATCH, timeout_s=TIMEOUT_S)
    alone = await subject.engine.embed(batch([1, 11, 12, 2]), timeout_s=TIMEOUT_S)
    assert together.matrix.shape == (3, subject.engine.description.dimensions)
    assert together.matrix.dtype == np.float32
    assert np.array_equal(together.matrix[1], alone.matrix[0])
    assert np.array_equal(together.matrix[0], together.matrix[2])
    assert not np.array_equal(together.matrix[0], together.matrix[1])
    assert not together.errors


async def test_the_report_tells_of_the_step(subject: Subject) -> None:
    report = (await subject.engine.embed(BATCH, timeout_s=TIMEOUT_S)).report
    assert report.step_tokens == BATCH.token_count
    assert report.step_duration_s > 0


@pytest.mark.parametrize("error", [ModelServerBusy, ModelServerLost, EngineFailed])
async def test_a_failed_batch_says_what_failed(subject: Subject, error: type[BatchFailed]) -> None:
    subject.fail_with(error)
    with pytest.raises(error, match="as the test wants it"):
        await subject.engine.embed(BATCH, timeout_s=TIMEOUT_S)


async def test_an_engine_that_hangs_is_lost_when_the_time_is_up(subject: Subject) -> None:
    subject.hang.clear()
    with pytest.raises(ModelServerLost, match="DEADLINE_EXCEEDED"):
        await subject.engine.embed(BATCH, timeout_s=0.05)


async def test_an_engine_goes_on_after_a_caller_gave_up(subject: Subject) -> None:
    subject.hang.clear()
    given_up = asyncio.create_task(subject.engine.embed(BATCH, timeout_s=TIMEOUT_S))
    await asyncio.sleep(0.02)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    subject.hang.set()
    assert (await subject.engine.embed(BATCH, timeout_s=TIMEOUT_S)).matrix.shape[0] == 3
