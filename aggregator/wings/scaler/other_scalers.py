"""Ask other scalers for figures, by the protocol of KEDA's external scaler.

Each replica of a scaler has a memory: of a peak, of the backlog when pods were asked for, of the throughput of a pod.
So a replica that started later can compute another figure from the same inputs. Therefore all replicas publish the
highest figure of any of them. And because the registration of the metrics API leads to the scaler of one release, that
one asks the scalers of the other releases.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import grpc
import grpc.aio

from aggregator.wings.scaler.measuring.demand import StaleInputError
from aggregator.wings.scaler.published import OWN_REQUIRED_REPLICAS, SCALER, UnknownMetric, Value
from protos.keda import externalscaler_pb2 as pb
from protos.keda import externalscaler_pb2_grpc as pb_grpc

_TIMEOUT_S = 5.0  # the HPA waits for it meanwhile
_PORT = 50071  # of the Service in the chart, and the default of keda.bind
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")

Find = Callable[[str, str], str]
"""The address of a Service in a namespace."""


class Peers:
    """The replicas of this scaler, including this one."""

    def __init__(self, models: Sequence[str], timeout_s: float) -> None:
        self._models = models
        self._timeout_s = timeout_s
        self._addresses: frozenset[str] = frozenset()

    async def follow(self, found: AsyncIterator[Mapping[str, bool]]) -> None:
        async for addresses in found:
            self._addresses = frozenset(addresses)

    async def required(self) -> Mapping[str, float]:
        """The highest number that any of them requires, by model; without models that none knows."""
        asked = [(address, model) for address in self._addresses for model in self._models]
        answers = await asyncio.gather(*(self._ask(*each) for each in asked))
        found: dict[str, float] = {}
        for (_, model), required in zip(asked, answers, strict=True):
            if required:
                found[model] = max(*required, found.get(model, 0.0))
        return found

    async def _ask(self, address: str, model: str) -> Sequence[float]:
        try:
            return await _values(address, OWN_REQUIRED_REPLICAS, {"model": model}, self._timeout_s)
        except (StaleInputError, UnknownMetric):
            return ()


def in_cluster(service: str, namespace: str) -> str:
    """The address at which the scaler of a release answers KEDA."""
    return f"{service}.{namespace}.svc:{_PORT}"


async def ask_release(find: Find, namespace: str, metric: str, labels: Mapping[str, str]) -> Sequence[Value]:
    """The figures of the scaler that the labels name.

    Raises UnknownMetric, or StaleInputError if it does not answer or does not know.
    """
    service = labels.get(SCALER, "")
    if not _SERVICE.fullmatch(service):
        raise UnknownMetric(f"{namespace} is another release's namespace: select by {SCALER}=NAME-OF-ITS-SCALER")
    wanted = {key: value for key, value in labels.items() if key != SCALER}
    return [Value(labels, value) for value in await _values(find(service, namespace), metric, wanted, _TIMEOUT_S)]


async def _values(address: str, metric: str, labels: Mapping[str, str], timeout_s: float) -> Sequence[float]:
    reference = pb.ScaledObjectRef(scalerMetadata={**labels, "metric": metric})
    request = pb.GetMetricsRequest(scaledObjectRef=reference, metricName=metric)
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            answer = await pb_grpc.ExternalScalerStub(channel).GetMetrics(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise UnknownMetric(error.details() or metric) from error
            raise StaleInputError(f"the scaler {address} answers {error.code().name}: {error.details()}") from error
    return [each.metricValueFloat for each in answer.metricValues]
