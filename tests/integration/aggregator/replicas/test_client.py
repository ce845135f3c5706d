"""How a model server is called, and what it reports of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from aggregator.errors import BatchFailed, Code, EngineFailed, ModelServerBusy, ModelServerLost, ModelServerTimedOut
from aggregator.model_server import StepResult
from aggregator.observability.costs import FREE
from aggregator.registry import KINDS
from aggregator.replicas.answers import BadDescription, checked_description
from aggregator.replicas.client import GrpcModelServer, ModelServerClient
from aggregator.scheduler.work_item import Priority
from aggregator.wings.costs.tenants import TenantCosts
from aggregator.wings.generation.call import GenerateCall, StreamStreamCall
from k8s.pod.metrics_buffer import MetricsBuffer
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_engine import batch, description
from tests.support.fake_model_server import FakeModelServer, Refusal, describe_response, embed_response

TIMEOUT_S = 60.0
BATCH = batch([1, 10, 2], [1, 11, 12, 2], attempt=2, isolate=True)


@pytest.fixture
async def server() -> AsyncIterator[FakeModelServer]:
    server = await FakeModelServer().start()
    yield server
    await server.kill()


@pytest.fixture
async def client(server: FakeModelServer) -> AsyncIterator[ModelServerClient]:
    client = ModelServerClient(server.address, KINDS)
    yield client
    await client.close()


@pytest.fixture
async def engine(client: ModelServerClient) -> GrpcModelServer:
    return GrpcModelServer(client, await client.describe(TIMEOUT_S))


async def under_way(server: FakeModelServer, engine: GrpcModelServer) -> asyncio.Task[StepResult]:
    """A batch that has come to its server, which hangs."""
    server.open.clear()
    sent = asyncio.create_task(engine.embed(BATCH, timeout_s=TIMEOUT_S))
    async with asyncio.timeout(TIMEOUT_S):
        while not server.batches:  # noqa: ASYNC110 - a list calls nobody
            await asyncio.sleep(0.01)
    return sent


async def test_a_batch_larger_than_grpcs_usual_limit_goes_through(engine: GrpcModelServer) -> None:
    large = batch(list(range(1_500_000)))
    assert len(large.token_ids) > 4 * 1024 * 1024
    assert (await engine.embed(large, timeout_s=TIMEOUT_S)).matrix.shape == (1, 8)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ModelServerBusy),
        (grpc.StatusCode.UNAVAILABLE, ModelServerLost),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ModelServerTimedOut),
        (grpc.StatusCode.CANCELLED, ModelServerLost),
        (grpc.StatusCode.FAILED_PRECONDITION, ModelServerLost),
        (grpc.StatusCode.UNIMPLEMENTED, ModelServerLost),
        (grpc.StatusCode.INTERNAL, EngineFailed),
        (grpc.StatusCode.UNKNOWN, EngineFailed),
        (grpc.StatusCode.INVALID_ARGUMENT, EngineFailed),
    ],
)
async def test_a_status_says_if_a_server_was_busy_or_lost_or_its_engine_failed(
    server: FakeModelServer, engine: GrpcModelServer, code: grpc.StatusCode, error: type[BatchFailed]
) -> None:
    def refuse(_: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        raise Refusal(code)

    server.answer = refuse
    with pytest.raises(BatchFailed, match=f"{code.name}: as the test wants it") as caught:
        await engine.embed(BATCH, timeout_s=TIMEOUT_S)
    assert type(caught.value) is error


async def test_a_message_too_large_for_grpc_is_not_a_busy_server(engine: GrpcModelServer) -> None:
    with pytest.raises(EngineFailed, match="larger than max"):
        await engine.embed(batch([1], token_ids=bytes(65 * 1024 * 1024)), timeout_s=TIMEOUT_S)


async def test_a_server_killed_under_way_is_lost_at_once(server: FakeModelServer, engine: GrpcModelServer) -> None:
    sent = await under_way(server, engine)
    await server.kill()
    async with asyncio.timeout(TIMEOUT_S / 2):
        with pytest.raises(ModelServerLost):
            await sent
    server.open.set()


async def test_a_connection_that_is_closed_loses_the_server_and_cancels_nobody(
    server: FakeModelServer, client: ModelServerClient, engine: GrpcModelServer
) -> None:
    sent = await under_way(server, engine)
    await client.close()
    with pytest.raises(ModelServerLost, match="closed"):
        await sent
    with pytest.raises(ModelServerLost, match="closed"):
        await engine.embed(BATCH, timeout_s=TIMEOUT_S)
    server.open.set()


async def test_bytes_that_are_no_message_lose_the_server(server: FakeModelServer, engine: GrpcModelServer) -> None:
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
        checked_description("a:1", said, KINDS)


def never() -> StreamStreamCall:
    raise AssertionError("no call is opened")


def test_the_last_steps_are_kept_as_reported_and_the_load_is_the_lasts() -> None:
    call = GenerateCall(description(), never, lambda _: ModelServerLost("x"), FREE)
    before = call.load
    for prompt_tokens in range(600):
        call.read(
            pb.GenerateStep(
                step_duration_s=0.02,
                free_kv_tokens=900,
                running=3,
                decoding_sequences=2,
                prompt_tokens=prompt_tokens,
                embedding_tokens=40,
            )
        )
    assert before is None
    assert call.load is call.last_steps[-1]
    assert call.load is not None
    assert (call.load.decoding_sequences, call.load.prefill_tokens, call.load.embedding_tokens) == (2, 599, 40)
    assert len(call.last_steps) == 512
    call.read(pb.GenerateStep())  # a refusal is no step
    assert call.load.prefill_tokens == 599


class Running:
    """A sequence that keeps what it is told."""

    sampling = pb.Sampling(max_tokens=5)
    account = 0
    priority = Priority.DEFAULT
    token_ids = b"\1\0\0\0"

    def __init__(self) -> None:
        self.told: list[object] = []

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[object], stop_tokens: int) -> None:
        assert stop_tokens == 0
        self.told.append([*token_ids, len(logprobs)])

    def end(self, finish_reason: int) -> None:
        self.told.append(finish_reason)

    def fail(self, code: Code, message: str) -> None:
        self.told += [code, message]

    def server_lost(self, error: BatchFailed) -> None:
        self.told.append(error)


async def test_log_probabilities_that_are_not_numbers_fail_their_sequence_alone() -> None:
    call = GenerateCall(description(), never, lambda _: ModelServerLost("x"), FREE)
    call._commands = asyncio.Queue()  # noqa: SLF001 - no call is opened
    broken, well = Running(), Running()
    call.generate(broken)
    call.generate(well)

    def logprobs(number: int, value: float) -> pb.SequenceLogprobs:
        packed = np.array([9], "<i4").tobytes()
        return pb.SequenceLogprobs(
            sequence=number, width=1, token_ids=packed, logprobs=np.array([value], "<f4").tobytes(), ranks=packed
        )

    call.read(
        pb.GenerateStep(
            sequences=np.array([1, 2], "<u4").tobytes(),
            counts=np.array([1, 1], "<u4").tobytes(),
            token_ids=np.array([9, 9], "<i4").tobytes(),
            logprobs=[logprobs(1, np.nan), logprobs(2, -np.inf)],
        )
    )
    assert broken.told == [Code.INTERNAL, "the log probabilities of its tokens are not numbers"]
    assert well.told == [[9, 1]]


def charged(*seconds: float, accounts: int | None = None) -> pb.GenerateStep:
    numbers = range(len(seconds) if accounts is None else accounts)
    return pb.GenerateStep(
        accounts=np.array(numbers, "<u4").tobytes(), account_seconds=np.array(seconds, "<f8").tobytes()
    )


def test_parts_of_steps_are_counted_for_whose_sequences_they_computed() -> None:
    buffer = MetricsBuffer()
    costs = TenantCosts(buffer)
    assert [costs.account(tenant) for tenant in ("a", "b", "a")] == [2, 3, 2]
    call = GenerateCall(description(), never, lambda _: ModelServerLost("x"), costs)
    call.read(charged(0.0, 0.0, 0.5, 1.5, 8.0))
    call.read(charged(0.0, 0.0, 0.25))
    call.read(pb.GenerateStep(unclaimed_s=4.0))
    seconds = next(metric for metric in buffer.collect().metrics if metric.name == "tokenbatch.engine")
    points: list[Any] = list(seconds.data.data_points)
    parts = {point.attributes["tenant"]: point.value for point in points}
    assert parts == {"nobody": 4.0, "a": 0.75, "b": 1.5, "other": 8.0}  # no tenant has account 4


@pytest.mark.parametrize(
    "step",
    [charged(-0.1), charged(np.nan), charged(np.inf), charged(0.1, accounts=2), pb.GenerateStep(account_seconds=b"1")],
)
def test_parts_of_steps_that_cannot_be_right_lose_the_server(step: pb.GenerateStep) -> None:
    call = GenerateCall(description(), never, lambda _: ModelServerLost("x"), FREE)
    with pytest.raises(ModelServerLost, match="account"):
        call.read(step)


async def test_a_batch_carries_its_class_and_the_answer_those_that_came_lately(
    server: FakeModelServer, engine: GrpcModelServer
) -> None:
    def answer(request: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        said = embed_response(request)
        said.recent_priorities.extend((request.priority, pb.PRIORITY_BACKGROUND))
        said.recent_priorities.append(99)  # type: ignore[arg-type]  # of a newer server
        return said

    server.answer = answer
    question = replace(BATCH, priority=Priority.INTERACTIVE, max_shared_tokens=70)
    result = await engine.embed(question, timeout_s=TIMEOUT_S)
    assert result.report.recent_priorities == {Priority.INTERACTIVE, Priority.BACKGROUND}
    assert server.batches[-1].max_shared_tokens == 70
