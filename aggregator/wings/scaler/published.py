"""The latest figures by metric and labels, for the metrics API, KEDA and Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from aggregator.wings.scaler.measuring.demand import StaleInputError
from aggregator.wings.scaler.measuring.figures import Figure

REQUIRED_REPLICAS = "tokenbatch_required_replicas"
OWN_REQUIRED_REPLICAS = "own_required_replicas"
"""The number that this replica of the scaler alone requires; other replicas ask for it."""
LAG = "tokenbatch_consumer_lag"
AGGREGATOR_BUSY = "tokenbatch_aggregator_busy"
METRICS = (REQUIRED_REPLICAS, LAG, AGGREGATOR_BUSY)
_OLD_NAMES = {f"embed_{metric.removeprefix('tokenbatch_')}": metric for metric in METRICS}
"""Of 0.1, which an autoscaler's object may still ask for: kept for a release."""
SCALER = "scaler"
"""The label with the Service of the scaler that a figure is from."""
_ALL: Mapping[str, str] = {}


class UnknownMetric(LookupError):
    """There is no metric of that name, or no series with these labels."""


@dataclass(frozen=True, slots=True)
class Value:
    """One series at this moment."""

    labels: Mapping[str, str]
    value: float


class Published:
    """The figures of one scaler. A figure that is too old is an error; `trouble` says which input is missing."""

    def __init__(self, models: Sequence[str], scaler: str, max_age_s: float, clock: Callable[[], float]) -> None:
        """`scaler`: the Service of this one."""
        self._models = models
        self.scaler = scaler
        self._max_age_s = max_age_s
        self._clock = clock
        self._started_s = clock()
        self.figures: dict[str, Figure] = {}
        self.of_peers: Mapping[str, float] = {}
        self.busy: tuple[float, float] | None = None
        self.trouble = "nothing was measured yet"

    def query(self, metric: str, wanted: Mapping[str, str] = _ALL) -> Sequence[Value]:
        """The series that have these labels. Raises UnknownMetric, StaleInputError."""
        series = [(self._labels(model), read) for model, read in self._series(metric).items()]
        chosen = [(labels, read) for labels, read in series if wanted.items() <= labels.items()]
        if not chosen:
            raise UnknownMetric(f"no series of {metric} has the labels {dict(wanted)}")
        return [Value(labels, read()) for labels, read in chosen]

    def known(self) -> Iterator[tuple[str, Value]]:
        """Every series with its metric, without unknown figures."""
        for metric in METRICS:
            for model, read in self._series(metric).items():
                with suppress(StaleInputError):
                    yield metric, Value(self._labels(model), read())

    def ages_s(self) -> Mapping[str, tuple[float | None, float]]:
        """By model: the required replicas if known, and the age of the oldest input, or of the process before any."""
        now_s = self._clock()
        found: dict[str, tuple[float | None, float]] = {}
        for model in self._models:
            figure = self.figures.get(model)
            age_s = now_s - (figure.measured_s if figure is not None else self._started_s)
            fresh = figure is not None and age_s <= self._max_age_s
            found[model] = (self._highest(model, figure) if figure is not None and fresh else None, age_s)
        return found

    def _labels(self, model: str) -> dict[str, str]:
        return {SCALER: self.scaler} | ({"model": model} if model else {})

    def _series(self, metric: str) -> Mapping[str, Callable[[], float]]:
        of_models = {REQUIRED_REPLICAS: self._required, OWN_REQUIRED_REPLICAS: self._own, LAG: self._lag}
        metric = _OLD_NAMES.get(metric, metric)
        if metric == AGGREGATOR_BUSY:
            return {"": self._busy_share}
        if metric not in of_models:
            raise UnknownMetric(f"unknown metric {metric}; this scaler has {', '.join(METRICS)}")
        return {model: partial(of_models[metric], model) for model in self._models}

    def _figure(self, model: str) -> Figure:
        figure = self.figures.get(model)
        if figure is None or self._clock() - figure.measured_s > self._max_age_s:
            raise StaleInputError(f"the demand for {model} is not known: {self.trouble}")
        return figure

    def _required(self, model: str) -> float:
        """The highest number that any replica of the scaler requires."""
        return self._highest(model, self._figure(model))

    def _own(self, model: str) -> float:
        figure = self._figure(model)
        if not figure.saw_scale_up:
            raise StaleInputError(
                f"this scaler started while pods of {model} were pending: no figure until they are ready"
            )
        return figure.required_replicas

    def _lag(self, model: str) -> float:
        return float(self._figure(model).lag_records)

    def _busy_share(self) -> float:
        if self.busy is None or self._clock() - self.busy[1] > self._max_age_s:
            raise StaleInputError(f"how busy the aggregators are is not known: {self.trouble}")
        return self.busy[0]

    def _highest(self, model: str, figure: Figure) -> float:
        of_peers = self.of_peers.get(model)
        if of_peers is None:
            return figure.required_replicas
        return max(figure.required_replicas, of_peers) if figure.saw_scale_up else of_peers
