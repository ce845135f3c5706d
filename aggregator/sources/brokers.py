"""The interface of a broker beside Kafka."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aggregator.admission.ledger import Intake
from aggregator.observability.metrics import Metrics
from aggregator.request.kind import Kind
from aggregator.request.request import Source
from aggregator.scheduler.work_item import Task
from aggregator.settings.aggregator import AggregatorSettings

Trial = Callable[[AggregatorSettings, float], tuple[str, Awaitable[Sequence[str]]] | None]
"""Tries a part for `--check`, within a time-out (s): its name, and a coroutine that returns warnings.

None where the settings do not enable the part. The coroutine raises StartError.
"""


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts that a broker's source is made of.

    `kinds`: the tasks of this aggregator. `default_model`: of requests that name none. `room`: tokens that a model's
    servers can take soon. `intake`: the part of the ledger of sources that pause. `dimensions`: of a model's vectors,
    0 if no server told. `known`: whether a model is configured. `trusts_tenant`: whether the tenant that a request
    names counts.
    """

    kinds: Sequence[Kind]
    default_model: str
    room: Callable[[str, Task], int]
    intake: Intake
    dimensions: Callable[[str], int]
    known: Callable[[str], bool]
    trusts_tenant: bool
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Broker:
    """Two functions, which return None where the settings do not enable the broker.

    `open` makes the source, and raises StartError.
    """

    open: Callable[[AggregatorSettings, BrokerParts], Source | None]
    check: Trial
