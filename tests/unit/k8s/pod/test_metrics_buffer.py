from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, MetricsData
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from k8s.pod.metrics_buffer import Instrument, MetricsBuffer

BOUNDS = (0.0, 1.0, 2.5, 10.0)
DURATION = Instrument("d", "s", "a duration", ("replica",))


def points(buffer: MetricsBuffer) -> list[Any]:
    return [point for metric in buffer.collect().metrics for point in metric.data.data_points]


def sdk_point(values: list[float]) -> HistogramDataPoint:
    reader = InMemoryMetricReader()
    view = View(instrument_name="d", aggregation=ExplicitBucketHistogramAggregation(BOUNDS))
    provider = MeterProvider([reader], views=[view])
    histogram = provider.get_meter("m").create_histogram("d")
    for value in values:
        histogram.record(value)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert isinstance(data, MetricsData)
    point = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]
    assert isinstance(point, HistogramDataPoint)
    return point


values = st.lists(st.sampled_from([*BOUNDS, 0.5, 1.5, 9.99, 11.0, 1e6]), min_size=1, max_size=30)


@given(values, st.integers(min_value=0, max_value=30))
def test_a_batch_of_values_counts_as_the_sdk_counts_them_one_by_one(recorded: list[float], split: int) -> None:
    buffer = MetricsBuffer()
    histogram = buffer.histogram(DURATION.name, DURATION.unit, DURATION.description, BOUNDS, *DURATION.keys)
    histogram.record_all(recorded[:split], "a")
    for value in recorded[split:]:
        histogram.record(value, "a")
    (point,) = points(buffer)
    expected = sdk_point(recorded)
    assert list(point.bucket_counts) == list(expected.bucket_counts)
    assert (point.count, point.min, point.max) == (expected.count, expected.min, expected.max)
    assert point.sum == pytest.approx(expected.sum)
    assert point.attributes == {"replica": "a"}


def test_gauges_are_read_together_and_only_when_someone_collects() -> None:
    buffer = MetricsBuffer()
    one, two = Instrument("one", "1", "", ("replica",)), Instrument("two", "1", "")
    reads: list[None] = []

    def read() -> dict[Instrument, dict[tuple[str, ...], float]]:
        reads.append(None)
        return {one: {("a",): 1, ("b",): 2}}

    buffer.gauges([one, two], read)
    assert not reads
    assert [point.value for point in points(buffer)] == [1, 2]
    assert len(reads) == 1
