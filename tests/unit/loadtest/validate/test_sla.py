"""When a run counts as inside its promise, and what the relay notes of a batch."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from loadtest.lab.validate.relay import Relay, Sent
from loadtest.lab.validate.sla import Kept
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc
from tests.support.fake_model_server import FakeModelServer, Refusal


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


def refuse(_: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
    raise Refusal(grpc.StatusCode.UNAVAILABLE, "not yet")


async def test_the_relay_passes_calls_on_and_notes_batches() -> None:
    server, listener = await FakeModelServer().start(), grpc.aio.server()
    async with grpc.aio.insecure_channel(server.address) as behind:
        relay = Relay(behind)
        listener.add_generic_rpc_handlers((relay,))
        port = listener.add_insecure_port("localhost:0")
        await listener.start()
        async with grpc.aio.insecure_channel(f"localhost:{port}") as channel, asyncio.timeout(10):
            stub = modelserver_pb2_grpc.ModelServerStub(channel)
            batch = pb.EmbedBatchRequest(max_step_tokens=99, token_ids=bytes(28), lengths=b"\7\0\0\0")
            answer = await stub.EmbedBatch(batch)
            names = {chunk.file_name async for chunk in stub.GetTokenizer(pb.GetTokenizerRequest())}
            server.answer = refuse
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.EmbedBatch(batch)
    await listener.stop(None)
    await server.kill()
    assert answer.step_tokens == 7
    assert names == set(server.files)
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, "not yet")
    (noted,) = relay.sent
    assert (noted.step_s, noted.token_budget) == (answer.step_duration_s, 99)
    assert noted.took_s > 0.0
