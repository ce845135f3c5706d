"""When a run counts as inside its promise, and what the relay notes of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from typing_extensions import override

from loadtest.validate.live import apart
from loadtest.validate.relay import Relay, Sent
from loadtest.validate.sla import Kept
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc


def kept(*took_s: float) -> Kept:
    """Ten batches a second, in each second all of the same time, against a promise of 50 ms."""
    sent = [Sent(second + tenth / 10.0, took, 0.03, 200) for second, took in enumerate(took_s) for tenth in range(10)]
    return Kept(0.05, 277, tuple(sent))


def test_each_second_has_its_own_p95() -> None:
    ends_s, p95s_s = zip(*kept(0.08, 0.04).p95_s(), strict=True)
    assert ends_s == (1.0, 2.0)
    assert p95s_s == pytest.approx((0.08, 0.04))


@pytest.mark.parametrize(
    ("took_s", "since_s", "share"),
    [
        ((0.08, 0.06, 0.04, 0.05), 2.0, 1.0),
        ((0.08, 0.04, 0.06, 0.04), 3.0, 2 / 3),
        ((0.04, 0.06), None, 0.5),
        ((0.06, 0.06), None, 0.0),
    ],
)
def test_it_is_inside_from_where_no_later_second_is_outside(
    took_s: tuple[float, ...], since_s: float | None, share: float
) -> None:
    found = kept(*took_s)
    assert found.inside_from_s == since_s
    assert found.inside == pytest.approx(share)


def test_the_plot_shows_the_promise_and_the_saturation_point() -> None:
    drawn = kept(0.08, 0.04).plot()
    assert drawn.startswith("<svg")
    for label in ("promised", "saturation point", "token budget", "p95 of each second"):
        assert label in drawn


@pytest.mark.parametrize(
    ("cores", "engines", "others"),
    [({3}, {3}, {3}), ({0, 1}, {0}, {1}), ({0, 1, 2, 5}, {0, 1}, {2, 5}), ({1, 2, 3}, {1}, {2, 3})],
)
def test_an_engine_has_half_of_the_cores_to_itself(cores: set[int], engines: set[int], others: set[int]) -> None:
    assert apart(cores) == (engines, others)


class _Server(modelserver_pb2_grpc.ModelServerServicer):
    @override
    async def EmbedBatch(self, request: pb.EmbedBatchRequest, context: Any) -> pb.EmbedBatchResponse:
        return pb.EmbedBatchResponse(dimensions=3, step_tokens=7, step_duration_s=0.25)

    @override
    def Generate(self, request_iterator: Any, context: Any) -> Any:
        """It embeds."""
        return super().Generate(request_iterator, context)

    @override
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        raise AssertionError("abort raises")

    @override
    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.TokenizerChunk]:
        for name in ("one", "two"):
            yield pb.TokenizerChunk(file_name=name)


async def test_the_relay_passes_calls_on_and_notes_batches() -> None:
    server, listener = grpc.aio.server(), grpc.aio.server()
    modelserver_pb2_grpc.add_ModelServerServicer_to_server(_Server(), server)
    port = server.add_insecure_port("localhost:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"localhost:{port}") as behind:
        relay = Relay(behind)
        listener.add_generic_rpc_handlers((relay,))
        before = listener.add_insecure_port("localhost:0")
        await listener.start()
        async with grpc.aio.insecure_channel(f"localhost:{before}") as channel, asyncio.timeout(10):
            stub = modelserver_pb2_grpc.ModelServerStub(channel)
            answer = await stub.EmbedBatch(pb.EmbedBatchRequest(max_step_tokens=99))
            names = [chunk.file_name async for chunk in stub.GetTokenizer(pb.GetTokenizerRequest())]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Describe(pb.DescribeRequest())
    await listener.stop(None)
    await server.stop(None)
    assert answer.step_tokens == 7
    assert names == ["one", "two"]
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, "not yet")
    (noted,) = relay.sent
    assert (noted.step_s, noted.token_budget) == (0.25, 99)
    assert noted.took_s > 0.0
