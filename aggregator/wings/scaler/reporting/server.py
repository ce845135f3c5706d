"""Where the scaler asks for the demand."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from k8s.pod.grpc.server import GrpcServer
from protos.aggregator.v1 import aggregator_pb2 as pb
from protos.aggregator.v1 import aggregator_pb2_grpc as pb_grpc

_MOST_CONNECTIONS = 64  # scalers have one each


class DemandServer(pb_grpc.DemandServicer):
    """`aggregator.v1.Demand`: each call gets a `report`."""

    def __init__(self, bind: str, report: Callable[[], pb.GetDemandResponse]) -> None:
        self._report = report
        self._server = GrpcServer("demand.bind", bind, _MOST_CONNECTIONS)
        self._server.add_servicer(pb_grpc.add_DemandServicer_to_server, self)

    @property
    def address(self) -> str:
        return self._server.address

    @override
    async def GetDemand(self, request: pb.GetDemandRequest, context: object) -> pb.GetDemandResponse:
        del request, context
        return self._report()

    async def start(self) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)
