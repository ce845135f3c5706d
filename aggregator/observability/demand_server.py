"""Serve demand to the scaler, on a port of its own that clients do not reach."""

from __future__ import annotations

from collections.abc import Callable

import grpc.aio
from typing_extensions import override

from aggregator.errors import StartError
from protos.aggregator.v1 import aggregator_pb2 as pb
from protos.aggregator.v1 import aggregator_pb2_grpc as pb_grpc


class DemandServer(pb_grpc.DemandServicer):
    """`aggregator.v1.Demand`: each call gets a `report`."""

    def __init__(self, bind: str, report: Callable[[], pb.GetDemandResponse]) -> None:
        self._bind = bind
        self._report = report
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self.address = ""
        pb_grpc.add_DemandServicer_to_server(self, self._server)

    @override
    async def GetDemand(self, request: pb.GetDemandRequest, context: object) -> pb.GetDemandResponse:
        """The present report."""
        del request, context
        return self._report()

    async def start(self) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        try:
            port = self._server.add_insecure_port(self._bind)
        except RuntimeError as error:
            raise StartError(f"demand.bind {self._bind} cannot be bound: is another program using the port?") from error
        self.address = f"{self._bind.rpartition(':')[0]}:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Stop, and cancel open calls."""
        await self._server.stop(None)
