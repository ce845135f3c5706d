"""The port on which the scaler asks for the demand."""

from __future__ import annotations

import grpc.aio
import pytest

from aggregator.wings.scaler.reporting.server import DemandServer
from k8s.pod.errors import StartError
from protos.aggregator.v1 import aggregator_pb2 as pb
from protos.aggregator.v1 import aggregator_pb2_grpc as pb_grpc


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "[::ffff:127.0.0.1]:0"])
async def test_the_scaler_is_answered_over_grpc(bind: str) -> None:
    server = DemandServer(bind, lambda: pb.GetDemandResponse(busy_share=0.5))
    assert server.address == ""
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            answer = await pb_grpc.DemandStub(channel).GetDemand(pb.GetDemandRequest())
        assert answer.busy_share == 0.5
        with pytest.raises(StartError, match="is another program using the port"):
            await DemandServer(server.address, pb.GetDemandResponse).start()
    finally:
        await server.stop()
