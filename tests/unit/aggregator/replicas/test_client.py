from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from aggregator.errors import BatchFailed, EngineFailed, ModelServerBusy, ModelServerLost
from aggregator.replicas.answers import BadDescription, checked_description
from aggregator.replicas.client import GrpcEngine, ModelServerClient
from aggregator.replicas.engine import StepResult
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.fakes.engines import batch, matrix_of
from tests.fakes.model_server import FILES, FakeModelServer, Refusal, describe_response, embed_response

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


async def test_a_batch_goes_out_and_its_vectors_come_back(server: FakeModelServer, engine: GrpcEngine) -> None:
    result = await engine.embed(BATCH, timeout_s=TIMEOUT_S)
    assert np.array_equal(result.matrix, matrix_of(BATCH.token_ids, BATCH.lengths, 8))
    assert result.matrix.dtype == np.float32
    report = result.report
    assert (report.step_tokens, report.step_duration_s, report.queued_tokens) == (7, 0.01, 3)
    assert (report.idle_before_s, report.staged_s) == (0.002, 0.001)
    assert server.batches == [
        pb.EmbedBatchRequest(
            batch_id="b1",
            model="fake",
            model_revision="r1",
            token_ids=BATCH.token_ids,
            lengths=BATCH.lengths,
            attempt=2,
            isolate=True,
            max_step_tokens=600,
        )
    ]


async def test_a_batch_larger_than_grpcs_usual_limit_goes_through(engine: GrpcEngine) -> None:
    large = batch(list(range(1_500_000)))
    assert len(large.token_ids) > 4 * 1024 * 1024
    assert (await engine.embed(large, timeout_s=TIMEOUT_S)).matrix.shape == (1, 8)


async def test_single_failed_queries_are_told_apart(server: FakeModelServer, engine: GrpcEngine) -> None:
    def answer(request: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        right = embed_response(request)
        right.errors.add(index=1, code=3, message="empty")
        return right

    server.answer = answer
    assert (await engine.embed(BATCH, timeout_s=TIMEOUT_S)).errors == ((1, 3, "empty"),)


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


async def test_a_server_that_hangs_is_lost_when_the_time_is_up(server: FakeModelServer, engine: GrpcEngine) -> None:
    server.open.clear()
    with pytest.raises(ModelServerLost, match="DEADLINE_EXCEEDED"):
        await engine.embed(BATCH, timeout_s=0.05)
    server.open.set()


async def test_a_server_killed_under_way_is_lost_at_once(server: FakeModelServer, engine: GrpcEngine) -> None:
    sent = await under_way(server, engine)
    await server.kill()
    async with asyncio.timeout(TIMEOUT_S / 2):
        with pytest.raises(ModelServerLost):
            await sent
    server.open.set()


async def test_a_caller_that_gives_up_cancels_the_call(server: FakeModelServer, engine: GrpcEngine) -> None:
    sent = await under_way(server, engine)
    sent.cancel()
    with pytest.raises(asyncio.CancelledError):
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


Spoil = Callable[[pb.EmbedBatchResponse], Any]


def _set(name: str, value: object) -> Spoil:
    return lambda answer: setattr(answer, name, value)


def _matrix(value: float) -> bytes:
    matrix = np.ones((2, 8), "<f4")
    matrix[1, 3] = value
    return matrix.tobytes()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_set("dimensions", 4), "4 dimensions, not 8"),
        (_set("embeddings", b""), "0 bytes of vectors, not 64"),
        (_set("embeddings", b"\0" * 65), "65 bytes"),
        (_set("embeddings", _matrix(math.nan)), "not finite"),
        (_set("embeddings", _matrix(math.inf)), "not finite"),
        (_set("step_duration_s", math.nan), "a time of nan s"),
        (_set("idle_before_s", -1.0), "a time of -1.0 s"),
        (_set("staged_s", math.inf), "a time of inf s"),
        (lambda answer: answer.errors.add(index=2, code=13), "places that do not exist"),
        (lambda answer: [answer.errors.add(index=0, code=13) for _ in "ab"], "places that do not exist"),
        (lambda answer: answer.errors.add(index=0, code=0), "a code that is none"),
        (lambda answer: answer.errors.add(index=0, code=99), "a code that is none"),
    ],
)
async def test_an_answer_that_cannot_be_right_loses_the_server(
    server: FakeModelServer, engine: GrpcEngine, spoil: Spoil, words: str
) -> None:
    def answer(request: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        right = embed_response(request)
        spoil(right)
        return right

    server.answer = answer
    with pytest.raises(ModelServerLost, match=words):
        await engine.embed(BATCH, timeout_s=TIMEOUT_S)


async def test_vectors_so_large_that_their_sum_overflows_are_finite(
    server: FakeModelServer, engine: GrpcEngine
) -> None:
    def answer(request: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        right = embed_response(request)
        right.embeddings = np.full((2, 8), 3e38, "<f4").tobytes()
        return right

    server.answer = answer
    assert (await engine.embed(BATCH, timeout_s=TIMEOUT_S)).matrix[0, 0] > 1e38


async def test_bytes_that_are_no_message_lose_the_server(server: FakeModelServer, engine: GrpcEngine) -> None:
    server.garbage = b"\xff\xff\xff"
    with pytest.raises(ModelServerLost):
        await engine.embed(BATCH, timeout_s=TIMEOUT_S)


async def test_the_tokenizers_files_come_whole(client: ModelServerClient) -> None:
    assert await client.fetch_tokenizer(TIMEOUT_S) == FILES


async def test_a_description_is_taken_over_with_its_curve(client: ModelServerClient, server: FakeModelServer) -> None:
    description = await client.describe(TIMEOUT_S)
    assert (description.address, description.model, description.dimensions) == (server.address, "fake", 8)
    assert description.curve is not None
    assert description.curve.saturation_point == 600


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


def test_matryoshka_dimensions_beyond_the_models_are_refused() -> None:
    with pytest.raises(BadDescription, match="matryoshka"):
        checked_description("a:1", describe_response(matryoshka_dimensions=[4, 9]))


@pytest.mark.parametrize(
    "profile",
    [
        pb.SaturationProfile(),
        pb.SaturationProfile(floor_s=math.nan),
        pb.SaturationProfile(fixed_s=-1.0),
        pb.SaturationProfile(rule="magic"),
    ],
)
def test_a_profile_that_is_no_curve_is_left_out(profile: pb.SaturationProfile) -> None:
    said = describe_response()
    if profile == pb.SaturationProfile():
        said.profile.CopyFrom(profile)
    said.profile.MergeFrom(profile)
    assert checked_description("a:1", said).curve is None


def test_a_batch_holds_no_more_queries_than_one_message_can_answer() -> None:
    description = checked_description("a:1", describe_response(dimensions=4096, step_query_capacity=100_000))
    assert description.step_query_capacity * 4096 * 4 < 64 * 1024 * 1024


def test_a_server_that_has_no_profile_yet_has_no_curve() -> None:
    said = describe_response()
    said.ClearField("profile")
    assert checked_description("a:1", said).curve is None
