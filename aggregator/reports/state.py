"""The state of one aggregator that reports read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aggregator.admission.models import Models
from aggregator.observability.metrics import Metrics
from aggregator.pipeline.demand import Demand
from aggregator.replicas.targets import Target
from aggregator.request.request import Backlogs


@dataclass(frozen=True, slots=True)
class AggregatorState:
    """The parts of one aggregator that can be read; on the event loop only.

    `server_troubles`: why each configured server is not used; empty if it is. `backlogs`: None without a broker.
    `broker_troubles`: says which brokers cannot be reached. `file_limit_warning`: the bounds that the limit
    of open files lowers; empty if none.
    """

    models: Models
    metrics: Metrics
    demand: Demand
    server_troubles: Callable[[], Sequence[tuple[Target, str]]]
    backlogs: Backlogs | None = None
    broker_troubles: Callable[[], Sequence[str]] = list
    slo_s: float | None = None
    file_limit_warning: str = ""
