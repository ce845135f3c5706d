"""Count what the scaler does and show what it publishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aggregator.observability.gathered import Gatherer, Instrument, Labels
from k8s.scaler.catalog import Catalog

_MODEL = ("model",)
_REPLICAS = Instrument("embed.required_replicas", "{replica}", "model servers the present load needs", _MODEL)
_AGE = Instrument("embed.scaler.input_age", "s", "age of the oldest input that a figure rests on", _MODEL)
_KEYS = ("metric", "scaler", "model")
_FIGURE = Instrument("embed.scaler.figure", "1", "what an autoscaler is told; absent while it cannot be told", _KEYS)

Figures = Mapping[str, tuple[float | None, float]]
"""By model: required replicas, where they can be told, and the age of the oldest input in seconds."""


class ScalerMetrics:
    """The instruments of one scaler."""

    def __init__(self, gatherer: Gatherer, figures: Callable[[], Figures]) -> None:
        """`figures` is called on the reader's thread."""
        self._errors = gatherer.counter(
            Instrument("embed.scaler.input.errors", "{error}", "inputs that could not be read", ("input",))
        )
        self._answers = gatherer.counter(
            Instrument("embed.scaler.answers", "{answer}", "figures asked for, by how it ended", ("by", "result"))
        )
        gatherer.gauges((_REPLICAS, _AGE), lambda: _values(figures()))
        self._gatherer = gatherer

    def show(self, catalog: Catalog) -> None:
        """Every figure as autoscalers get it, by the labels that they name, for an adapter that reads Prometheus."""
        self._gatherer.gauges(
            (_FIGURE,),
            lambda: {
                _FIGURE: {
                    (metric, *(each.labels.get(key, "") for key in _KEYS[1:])): each.value
                    for metric, each in catalog.known()
                }
            },
        )

    def input_failed(self, name: str) -> None:
        """An input (kafka, aggregator, kubernetes) could not be read."""
        self._errors.add(1, name)

    def answered(self, asker: str, result: str) -> None:
        """The API or KEDA asked, and got a value or an error."""
        self._answers.add(1, asker, result)


def _values(figures: Figures) -> Mapping[Instrument, Mapping[Labels, float]]:
    replicas: dict[Labels, float] = {(model,): value for model, (value, _) in figures.items() if value is not None}
    ages: dict[Labels, float] = {(model,): age_s for model, (_, age_s) in figures.items()}
    return {_REPLICAS: replicas, _AGE: ages}
