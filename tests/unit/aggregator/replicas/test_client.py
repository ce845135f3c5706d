from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from aggregator.engine import StepResult
from aggregator.errors import BatchFailed, EngineFailed, ModelServerBusy, ModelServerLost
from aggregator.replicas.answers import BadDescription, checked_description
from aggregator.replicas.client import GrpcEngine, ModelServerClient
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_engine import batch
from tests.support.fake_model_server import FakeModelServer, Refusal, describe_response

TIMEOUT_S = 60.0
BATCH = batch([1, 10, 2], [1, 11, 12, 2], attempt=2, isolate=True)


@pytest.fixture
async def server() -> AsyncIterator[FakeModelServer]:
    server = await FakeModelServer().start()
    yield server
    await server.kill()


@pytest.fixture
async def client(server: FakeModelServer) -> AsyncIterator[ModelServerClient]:
    client = ModelServerClient(server.address)
    yield client
    await client.close()


@pytest.fixture
async def engine(client: ModelServerClient) -> GrpcEngine:
    return GrpcEngine(client, await client.describe(TIMEOUT_S))


async def under_way(server: FakeModelServer, engine: GrpcEngine) -> asyncio.Task[StepResult]:
    """A batch that has come to its server, which hangs."""
    server.open.clear()
    sent = asyncio.create_task(engine.embed(BATCH, timeout_s=TIMEOUT_S))
    async with asyncio.timeout(TIMEOUT_S):
        while not server.batches:  # noqa: ASYNC110 - a list calls nobody
            await asyncio.sleep(0.01)
    return sent


async def test_a_batch_larger_than_grpcs_usual_limit_goes_through(engine: GrpcEngine) -> None:
    large = batch(list(range(1_500_000)))
    assert len(large.token_ids) > 4 * 1024 * 1024
    assert (await engine.embed(large, timeout_s=TIMEOUT_S)).matrix.shape == (1, 8)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ModelServerBusy),
        (grpc.StatusCode.UNAVAILABLE, ModelServerLost),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ModelServerLost),
        (grpc.StatusCode.CANCELLED, ModelServerLost),
        (grpc.StatusCode.FAILED_PRECONDITION, ModelServerLost),
        (grpc.StatusCode.UNIMPLEMENTED, ModelServerLost),
        (grpc.StatusCode.INTERNAL, EngineFailed),
        (grpc.StatusCode.UNKNOWN, EngineFailed),
        (grpc.StatusCode.INVALID_ARGUMENT, EngineFailed),
    ],
)
async def test_a_status_says_whether_the_server_was_busy_lost_or_its_engine_failed(
    server: FakeModelServer, engine: GrpcEngine, code: grpc.StatusCode, error: type[BatchFailed]
) -> None:
    def refuse(_: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        raise Refusal(code)

    server.answer = refuse
    with pytest.raises(BatchFailed, match=f"{code.name}: as the test wants it") as caught:
        await engine.embed(BATCH, timeout_s=TIMEOUT_S)
    assert type(caught.value) is error


async def test_a_message_too_large_for_grpc_is_not_a_busy_server(engine: GrpcEngine) -> None:
    with pytest.raises(EngineFailed, match="larger than max"):
        await engine.embed(batch([1], token_ids=bytes(65 * 1024 * 1024)), timeout_s=TIMEOUT_S)


async def test_a_server_killed_under_way_is_lost_at_once(server: FakeModelServer, engine: GrpcEngine) -> None:
    sent = await under_way(server, engine)
    await server.kill()
    async with asyncio.timeout(TIMEOUT_S / 2):
        with pytest.raises(ModelServerLost):
            await sent
    server.open.set()


async def test_a_connection_that_is_closed_loses_the_server_and_cancels_nobody(
    server: FakeModelServer, client: ModelServerClient, engine: GrpcEngine
) -> None:
    sent = await under_way(server, engine)
    await client.close()
    with pytest.raises(ModelServerLost, match="closed"):
        await sent
    with pytest.raises(ModelServerLost, match="closed"):
        await engine.embed(BATCH, timeout_s=TIMEOUT_S)
    server.open.set()


async def test_bytes_that_are_no_message_lose_the_server(server: FakeModelServer, engine: GrpcEngine) -> None:
    server.garbage = b"\xff\xff\xff"
    with pytest.raises(ModelServerLost):
        await engine.embed(BATCH, timeout_s=TIMEOUT_S)


async def test_a_server_that_does_not_serve_yet_is_not_described(
    client: ModelServerClient, server: FakeModelServer
) -> None:
    await server.serve(serving=False)
    with pytest.raises(ModelServerLost, match="not serving yet"):
        await client.describe(TIMEOUT_S)


@pytest.mark.parametrize("field", ["model", "model_revision", "tokenizer_fingerprint", "instance_id", "dimensions"])
def test_a_description_that_lacks_what_matters_is_refused(field: str) -> None:
    said = describe_response()
    said.ClearField(field)
    with pytest.raises(BadDescription, match=field):
        checked_description("a:1", said)
