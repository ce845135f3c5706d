"""What the composition root and `--check` call of a kind of broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aggregator.admission.ledger import Intake
from aggregator.observability.metrics import Metrics
from aggregator.request.kind import Kind
from aggregator.request.request import Source
from aggregator.scheduler.work_item import Task
from aggregator.settings.aggregator import AggregatorSettings


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What a broker's source is made of.

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
    """A kind of broker, by two functions, which return None where its settings do not enable it.

    `open` makes its source. `check` is given a time-out (s), and returns the broker's name and what tries it: that
    returns warnings, and raises StartError.
    """

    open: Callable[[AggregatorSettings, BrokerParts], Source | None]
    check: Callable[[AggregatorSettings, float], tuple[str, Awaitable[Sequence[str]]] | None]
