"""The gRPC port: KEDA's external and external-push scaler, and the health service."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
from typing_extensions import override

from aggregator.wings.scaler.measuring.demand import StaleInputError
from aggregator.wings.scaler.published import AGGREGATOR_BUSY, LAG, REQUIRED_REPLICAS, Published, UnknownMetric
from k8s.pod.grpc.server import GrpcServer
from protos.keda import externalscaler_pb2 as pb
from protos.keda import externalscaler_pb2_grpc as pb_grpc

LIVENESS = "liveness"
_TARGETS = {REQUIRED_REPLICAS: 1.0, LAG: 20_000.0, AGGREGATOR_BUSY: 0.6}


class KedaScaler(pb_grpc.ExternalScalerServicer):
    """`externalscaler.ExternalScaler`. A figure that is not known is an error, on which KEDA uses its fallback."""

    def __init__(self, published: Published, interval_s: float) -> None:
        """`interval_s`: how often a stream checks for a change."""
        self._published = published
        self._interval_s = interval_s

    @override
    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        return pb.IsActiveResponse(result=await self._answered(request, context) > 0.0)

    @override
    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        """The same at once and at each change; nothing while it is unknown."""
        await self._chosen(request, context)
        said: bool | None = None
        while True:
            with contextlib.suppress(StaleInputError):
                active = self._value(request) > 0.0
                if active is not said:
                    said = active
                    yield pb.IsActiveResponse(result=active)
            await asyncio.sleep(self._interval_s)

    @override
    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Any) -> pb.GetMetricSpecResponse:
        """The metric's name and the value that one replica stands for."""
        metric = await self._chosen(request, context)
        target = await _target(request, metric, context)
        return pb.GetMetricSpecResponse(
            metricSpecs=[pb.MetricSpec(metricName=metric, targetSize=math.ceil(target), targetSizeFloat=target)]
        )

    @override
    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:
        value = await self._answered(request.scaledObjectRef, context)
        metric = _metric(request.scaledObjectRef)
        return pb.GetMetricsResponse(
            metricValues=[pb.MetricValue(metricName=metric, metricValue=math.ceil(value), metricValueFloat=value)]
        )

    async def _answered(self, reference: pb.ScaledObjectRef, context: Any) -> float:
        await self._chosen(reference, context)
        try:
            return self._value(reference)
        except StaleInputError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise

    async def _chosen(self, reference: pb.ScaledObjectRef, context: Any) -> str:
        """The metric that the metadata of a trigger name; ends the call if there is no such metric."""
        try:
            self._value(reference)
        except UnknownMetric as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StaleInputError:
            pass
        return _metric(reference)

    def _value(self, reference: pb.ScaledObjectRef) -> float:
        model = reference.scalerMetadata.get("model", "")
        wanted = {"model": model} if model else {}
        return max(each.value for each in self._published.query(_metric(reference), wanted))


class GrpcPort:
    """The gRPC server. In the health service, `""` means ready and `liveness` means alive."""

    def __init__(self, scaler: KedaScaler, bind: str, most_connections: int) -> None:
        self._server = GrpcServer("keda.bind", bind, most_connections)
        self._server.add_servicer(pb_grpc.add_ExternalScalerServicer_to_server, scaler)

    @property
    def address(self) -> str:
        return self._server.address

    async def start(self) -> None:
        """Listen, alive but not ready yet. Raises StartError."""
        await self._server.set_serving((LIVENESS,), serving=True)
        await self.set_ready(ready=False)
        await self._server.start()

    async def set_ready(self, *, ready: bool) -> None:
        await self._server.set_serving(("",), serving=ready)

    async def stop(self, grace_s: float) -> None:
        await self.set_ready(ready=False)
        await self._server.stop(grace_s)


def _metric(reference: pb.ScaledObjectRef) -> str:
    return reference.scalerMetadata.get("metric", "") or REQUIRED_REPLICAS


async def _target(reference: pb.ScaledObjectRef, metric: str, context: Any) -> float:
    given = reference.scalerMetadata.get("target", "")
    try:
        target = float(given) if given else _TARGETS[metric]
    except ValueError:
        target = math.nan
    if not 0.0 < target < math.inf:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"target {given!r} is not a positive number")
    return target
