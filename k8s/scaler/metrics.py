"""The metrics of the scaler."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.observability.metrics_buffer import Instrument, Labels, MetricsBuffer
from k8s.scaler.published import Published

_MODEL = ("model",)
_REPLICAS = Instrument("embed.required_replicas", "{replica}", "model servers the present load needs", _MODEL)
_AGE = Instrument("embed.scaler.input_age", "s", "age of the oldest input of a figure", _MODEL)
_KEYS = ("metric", "scaler", "model")
_FIGURE = Instrument("embed.scaler.figure", "1", "figure for the autoscaler; absent while unknown", _KEYS)


def show(buffer: MetricsBuffer, published: Published, models: Mapping[str, str]) -> None:
    """Show what is published: by the aggregators' name of each model, and for an adapter as autoscalers get it."""
    buffer.gauges((_REPLICAS, _AGE), lambda: _values(published.ages_s(), models))
    buffer.gauges(
        (_FIGURE,),
        lambda: {
            _FIGURE: {
                (metric, *(each.labels.get(key, "") for key in _KEYS[1:])): each.value
                for metric, each in published.known()
            }
        },
    )


def _values(
    figures: Mapping[str, tuple[float | None, float]], models: Mapping[str, str]
) -> Mapping[Instrument, Mapping[Labels, float]]:
    """The servers of a model and those of its canary count together."""
    replicas: dict[Labels, float] = {}
    ages: dict[Labels, float] = {}
    for name, (required, age_s) in figures.items():
        model = (models[name],)
        ages[model] = max(age_s, ages.get(model, 0.0))
        if required is not None:
            replicas[model] = required + replicas.get(model, 0.0)
    return {_REPLICAS: replicas, _AGE: ages}
