"""The scaler's own metrics name models as the aggregators do, so that alerts can compare the two."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import NumberDataPoint

from k8s.process.metrics_buffer import MetricsBuffer
from k8s.scaler.app import show
from k8s.scaler.measuring.figures import Figure
from k8s.scaler.published import Published

Series = dict[tuple[str, str], float]


def shown(published: Published, models: dict[str, str]) -> Series:
    """The values by metric and model."""
    buffer = MetricsBuffer()
    show(buffer, published, models)
    return {
        (metric.name, str((point.attributes or {})["model"])): point.value
        for metric in buffer.collect().metrics
        if metric.name != "embed.scaler.figure"
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }


def test_the_servers_of_a_model_and_of_its_canary_count_together() -> None:
    published = Published(["minilm", "minilm-canary", "bge"], "scaler", 20.0, lambda: 100.0)
    published.figures = {
        "minilm": Figure(2.0, 0, 95.0),
        "minilm-canary": Figure(0.5, 0, 97.0),
        "bge": Figure(1.0, 0, 60.0),
    }
    models = {"minilm": "org/MiniLM", "minilm-canary": "org/MiniLM", "bge": "bge"}
    assert shown(published, models) == {
        ("embed.required_replicas", "org/MiniLM"): 2.5,
        ("embed.scaler.input_age", "org/MiniLM"): 5.0,
        ("embed.scaler.input_age", "bge"): 40.0,
    }
