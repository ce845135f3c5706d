"""Do with a ScaledObject what KEDA's operator does: open the push stream, ask for targets and values, set replicas.

No KEDA runs here: this speaks its protocol to the scaler, by the triggers that the chart rendered. Only the pause
before the last replica goes (`cooldownPeriod`) is given to it, as nobody wants to wait for the chart's.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from protos.keda import externalscaler_pb2 as pb
from protos.keda import externalscaler_pb2_grpc as pb_grpc
from tests.cluster.release import NAMESPACE, Object, get, kube

_POLL_S = 1.0


@dataclass
class KedaOperator:
    """Scales one ScaledObject's target; `replicas` is what it set, in order."""

    scaled_object: Object
    cooldown_s: float
    address_of: Callable[[str], str]
    replicas: list[int] = field(default_factory=list[int])
    _active: bool = False
    _active_s: float = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Operate while inside."""
        task = asyncio.create_task(self._run(), name="operator")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        spec = self.scaled_object["spec"]
        address = self.address_of(spec["triggers"][0]["metadata"]["scalerAddress"])
        async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as tasks:
            stub: Any = pb_grpc.ExternalScalerStub(channel)
            for trigger in spec["triggers"]:
                if trigger["type"] == "external-push":
                    tasks.create_task(self._listen(stub, trigger))
            tasks.create_task(self._scale(stub))

    async def _listen(self, stub: Any, trigger: Object) -> None:
        """Hear at once that there is something to do."""
        async for said in stub.StreamIsActive(self._reference(trigger), wait_for_ready=True):
            self._active = said.result
            if self._active and self._present() == 0:
                self._set(max(1, int(self.scaled_object["spec"]["minReplicaCount"])))

    async def _scale(self, stub: Any) -> None:
        spec = self.scaled_object["spec"]
        while True:
            try:
                wanted = [await self._wanted(stub, trigger) for trigger in spec["triggers"]]
            except grpc.aio.AioRpcError:  # fallback: currentReplicasIfHigher
                await asyncio.sleep(_POLL_S)
                continue
            now_s, present = time.monotonic(), self._present()
            if self._active:
                self._active_s = now_s
            if present and not self._active and now_s - self._active_s > self.cooldown_s:
                self._set(int(spec["minReplicaCount"]))
            elif present:
                self._set(min(int(spec["maxReplicaCount"]), max(1, *wanted)))
            await asyncio.sleep(_POLL_S)

    async def _wanted(self, stub: Any, trigger: Object) -> int:
        """As the HorizontalPodAutoscaler that KEDA makes computes an AverageValue."""
        reference = self._reference(trigger)
        (spec,) = (await stub.GetMetricSpec(reference, wait_for_ready=True)).metricSpecs
        asked = pb.GetMetricsRequest(scaledObjectRef=reference, metricName=spec.metricName)
        (value,) = (await stub.GetMetrics(asked)).metricValues
        replicas: float = value.metricValueFloat / (spec.targetSizeFloat or spec.targetSize)
        return math.ceil(replicas)

    def _reference(self, trigger: Object) -> pb.ScaledObjectRef:
        name = self.scaled_object["metadata"]["name"]
        return pb.ScaledObjectRef(name=name, namespace=NAMESPACE, scalerMetadata=trigger["metadata"])

    def _present(self) -> int:
        return int(get("deployment", self._target)["spec"]["replicas"])

    def _set(self, replicas: int) -> None:
        if replicas != self._present():
            self.replicas.append(replicas)
            kube("--namespace", NAMESPACE, "scale", f"deployment/{self._target}", f"--replicas={replicas}")

    @property
    def _target(self) -> str:
        name: str = self.scaled_object["spec"]["scaleTargetRef"]["name"]
        return name
