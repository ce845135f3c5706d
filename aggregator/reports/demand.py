"""Report the demand for the model servers and their capacity to the scaler."""

from __future__ import annotations

import time
from collections.abc import Callable

from typing_extensions import override

from aggregator.admission.models import Models
from aggregator.pipeline.demand_meter import DemandMeter
from aggregator.request.request import Backlogs
from aggregator.scheduler.rates import BusyShare
from k8s.pod.grpc.server import GrpcServer
from protos.aggregator.v1 import aggregator_pb2 as pb
from protos.aggregator.v1 import aggregator_pb2_grpc as pb_grpc

_MOST_CONNECTIONS = 64  # scalers have one each


class DemandReport:
    """The report for the scaler; to be made on the event loop."""

    def __init__(
        self,
        models: Models,
        meter: DemandMeter,
        backlogs: Backlogs = list,
    ) -> None:
        self._models = models
        self._meter = meter
        self._backlogs = backlogs
        self._busy = BusyShare()

    def __call__(self) -> pb.GetDemandResponse:
        backlogs = self._backlogs()
        return pb.GetDemandResponse(
            busy_share=self._busy.observe(time.monotonic(), time.thread_time()),
            models=[self._meter.of(model) for model in self._models],
            partitions=[
                pb.Partition(topic=each.topic, partition=each.partition, fetch_position=each.position, model=each.model)
                for each in backlogs
                if isinstance(each.partition, int)
            ],
            streams=[
                pb.Stream(
                    stream=each.topic,
                    model=each.model,
                    waiting_entries=each.records,
                    tokens_per_entry=self._meter.tokens_per_record(each.model, each.source),
                )
                for each in backlogs
                if not isinstance(each.partition, int)
            ],
        )


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
