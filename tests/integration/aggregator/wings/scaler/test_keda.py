"""The scaler as KEDA's operator uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aggregator.wings.scaler.keda import LIVENESS, GrpcPort, KedaScaler
from aggregator.wings.scaler.measuring.figures import Figure
from aggregator.wings.scaler.published import Published
from protos.keda import externalscaler_pb2 as pb
from protos.keda import externalscaler_pb2_grpc as pb_grpc


class Operator:
    """KEDA's side of the connection, and the figures behind the other."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.published = Published(["m"], "scaler", 20.0, lambda: self.now_s)
        self.show(0.0)
        self.port = GrpcPort(KedaScaler(self.published, 0.01), "127.0.0.1:0", 8)

    def show(self, replicas: float, lag: int = 0) -> None:
        self.published.figures = {"m": Figure(replicas, lag, self.now_s)}

    def connect(self) -> None:
        self.channel = grpc.aio.insecure_channel(self.port.address)
        self.stub: Any = pb_grpc.ExternalScalerStub(self.channel)


def reference(**metadata: str) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(name="model", namespace="ns", scalerMetadata={"model": "m", **metadata})


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    operator = Operator()
    await operator.port.start()
    operator.connect()
    yield operator
    await operator.channel.close()
    await operator.port.stop(0)


async def test_from_none_to_one_to_many_and_back(operator: Operator) -> None:
    spec = await operator.stub.GetMetricSpec(reference())
    (metric,) = spec.metricSpecs
    assert (metric.metricName, metric.targetSize, metric.targetSizeFloat) == ("tokenbatch_required_replicas", 1, 1.0)
    for replicas, active in ((0.0, False), (0.2, True), (3.4, True), (0.0, False)):
        operator.show(replicas)
        assert (await operator.stub.IsActive(reference())).result is active
        found = await operator.stub.GetMetrics(
            pb.GetMetricsRequest(scaledObjectRef=reference(), metricName=metric.metricName)
        )
        (value,) = found.metricValues
        assert value.metricValueFloat == replicas
        assert value.metricValue == -(-replicas // 1)


async def test_the_stream_tells_at_once_and_at_each_change(operator: Operator) -> None:
    stream = operator.stub.StreamIsActive(reference(metric="tokenbatch_required_replicas"))
    assert (await stream.read()).result is False
    operator.show(1.0)
    assert (await asyncio.wait_for(stream.read(), 30)).result is True
    operator.show(2.0)
    pending = asyncio.ensure_future(stream.read())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(pending), 0.1)
    operator.show(0.0)
    assert (await asyncio.wait_for(pending, 30)).result is False
    stream.cancel()


async def test_what_is_stale_is_an_error_to_keda(operator: Operator) -> None:
    operator.now_s = 200.0
    operator.published.trouble = "no aggregator has answered"
    request = pb.GetMetricsRequest(scaledObjectRef=reference(), metricName="tokenbatch_required_replicas")
    for call in (operator.stub.IsActive(reference()), operator.stub.GetMetrics(request)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "no aggregator has answered" in (caught.value.details() or "")


async def test_a_trigger_may_name_metric_and_target(operator: Operator) -> None:
    operator.show(1.0, lag=4321)
    trigger = reference(metric="tokenbatch_consumer_lag", target="500")
    assert (await operator.stub.GetMetricSpec(trigger)).metricSpecs[0].targetSizeFloat == 500.0
    found = await operator.stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=trigger))
    assert found.metricValues[0].metricValueFloat == 4321.0


@pytest.mark.parametrize("metadata", [{"metric": "other"}, {"model": "x"}, {"target": "many"}, {"target": "-1"}])
async def test_a_trigger_that_means_nothing_is_refused(operator: Operator, metadata: dict[str, str]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await operator.stub.GetMetricSpec(reference(**metadata))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_alive_is_not_ready(operator: Operator) -> None:
    health: Any = health_pb2_grpc.HealthStub(operator.channel)

    async def status(service: str) -> int:
        status: int = (await health.Check(health_pb2.HealthCheckRequest(service=service))).status
        return status

    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await status(LIVENESS), await status("")) == (serving, not_serving)
    await operator.port.set_ready(ready=True)
    assert (await status(LIVENESS), await status("")) == (serving, serving)


def test_the_wire_is_kedas() -> None:
    """Message and field numbers as KEDA 2.21 has them: wrong ones would be read as nothing."""
    assert pb.DESCRIPTOR.package == "externalscaler"
    assert pb.MetricValue(metricName="a", metricValue=2, metricValueFloat=1.5).SerializeToString() == (
        b"\n\x01a\x10\x02\x19\x00\x00\x00\x00\x00\x00\xf8?"
    )
    assert pb.ScaledObjectRef(scalerMetadata={"k": "v"}).SerializeToString() == b"\x1a\x06\n\x01k\x12\x01v"
