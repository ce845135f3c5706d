"""Ask the scaler of another release for a figure: the registration of a cluster leads to one scaler only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import grpc
import grpc.aio

from aggregator.scheduler.demand import StaleInputError
from k8s.scaler.catalog import SCALER, UnknownMetric, Value
from k8s.scaler.selectors import equalities
from protos.keda import externalscaler_pb2 as pb
from protos.keda import externalscaler_pb2_grpc as pb_grpc

_TIMEOUT_S = 5.0
_PORT = 50071
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")

Find = Callable[[str, str], str]
"""The address of a Service of a namespace."""


def in_cluster(service: str, namespace: str) -> str:
    """Where a scaler answers KEDA, in each release of the chart."""
    return f"{service}.{namespace}.svc:{_PORT}"


async def ask(find: Find, namespace: str, metric: str, selector: str) -> Sequence[Value]:
    """What the scaler that the selector names says.

    Raises BadSelector, UnknownMetric, or StaleInputError where it does not answer or does not know.
    """
    labels = equalities(selector)
    service = labels.get(SCALER, "")
    if not _SERVICE.fullmatch(service):
        raise UnknownMetric(f"whose, in the namespace {namespace}? say it by the selector: {SCALER}=tokenbatch-scaler")
    told = {key: value for key, value in labels.items() if key != SCALER}
    return [Value(labels, value) for value in await values(find(service, namespace), metric, told, _TIMEOUT_S)]


async def values(address: str, metric: str, labels: Mapping[str, str], timeout_s: float) -> Sequence[float]:
    """What the scaler at an address says, asked as KEDA asks it. Raises UnknownMetric, StaleInputError."""
    reference = pb.ScaledObjectRef(scalerMetadata={**labels, "metric": metric})
    request = pb.GetMetricsRequest(scaledObjectRef=reference, metricName=metric)
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            answer = await pb_grpc.ExternalScalerStub(channel).GetMetrics(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise UnknownMetric(error.details() or metric) from error
            raise StaleInputError(f"the scaler {address} says {error.code().name}: {error.details()}") from error
    return [each.metricValueFloat for each in answer.metricValues]
