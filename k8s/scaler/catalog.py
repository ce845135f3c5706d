"""The metrics there are, by name and labels: what the API and KEDA are both answered from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from aggregator.scheduler.demand import StaleInputError
from k8s.scaler.figures import Published
from k8s.scaler.selectors import matches

REQUIRED_REPLICAS = "embed_required_replicas"
OWN_REQUIRED_REPLICAS = "own_required_replicas"
"""What this replica of the scaler alone requires, for the others."""
LAG = "embed_consumer_lag"
AGGREGATOR_BUSY = "embed_aggregator_busy"
SCALER = "scaler"
"""The label that says which scaler's Service a figure is of."""


class UnknownMetric(LookupError):
    """No metric of that name, or no series that the selector means."""


@dataclass(frozen=True, slots=True)
class Value:
    """One series at this moment."""

    labels: Mapping[str, str]
    value: float


class Catalog:
    """Reads the published figures."""

    names = (REQUIRED_REPLICAS, LAG, AGGREGATOR_BUSY)

    def __init__(self, published: Published, models: Mapping[str, str], scaler: str) -> None:
        """`models`: the label of each model, and its name; `scaler`: the Service of this one."""
        self._published = published
        self._models = models
        self.scaler = scaler

    def query(self, metric: str, selector: str = "") -> Sequence[Value]:
        """The series that a selector means. Raises UnknownMetric, BadSelector, StaleInputError."""
        series = self._series(metric)
        chosen = {label: read for label, read in series.items() if matches(selector, self._labels(label))}
        if not chosen:
            raise UnknownMetric(f"no series of {metric} has the labels {selector!r}")
        return [Value(self._labels(label), read()) for label, read in chosen.items()]

    def known(self) -> Iterator[tuple[str, Value]]:
        """Every series with its metric, but those that cannot be told at this moment."""
        for metric in self.names:
            for label, read in self._series(metric).items():
                with suppress(StaleInputError):
                    yield metric, Value(self._labels(label), read())

    def _labels(self, label: str) -> dict[str, str]:
        return {SCALER: self.scaler} | ({"model": label} if label else {})

    def _series(self, metric: str) -> Mapping[str, Callable[[], float]]:
        published = self._published
        models = self._models.items()
        if metric == REQUIRED_REPLICAS:
            return {label: partial(published.required_replicas, name) for label, name in models}
        if metric == OWN_REQUIRED_REPLICAS:
            return {label: partial(_own, published, name) for label, name in models}
        if metric == LAG:
            return {label: partial(_lag, published, name) for label, name in models}
        if metric == AGGREGATOR_BUSY:
            return {"": published.busy_share}
        raise UnknownMetric(f"there is no metric {metric}; there are {', '.join(self.names)}")


def _own(published: Published, model: str) -> float:
    figure = published.figure(model)
    if not figure.knows_what_for:
        raise StaleInputError(f"this replica does not know what the pods of {model} that are pending were asked for")
    return figure.required_replicas


def _lag(published: Published, model: str) -> float:
    return float(published.figure(model).lag_records)
