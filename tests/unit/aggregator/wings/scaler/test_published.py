"""What is published is the latest, or an error that says what is missing; models are named as aggregators name them."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics.export import NumberDataPoint

from aggregator.wings.scaler.app import show
from aggregator.wings.scaler.measuring.demand import StaleInputError
from aggregator.wings.scaler.measuring.figures import Figure
from aggregator.wings.scaler.published import AGGREGATOR_BUSY, LAG, REQUIRED_REPLICAS, Published, UnknownMetric
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.virtual_time import ManualClock

M = {"model": "m"}


def publish(clock: ManualClock, *models: str) -> Published:
    return Published(models or ("m", "n"), "scaler", 20.0, clock)


def test_a_figure_is_found_by_name_and_label() -> None:
    published = publish(ManualClock(100.0))
    published.figures = {"m": Figure(2.5, 7, 100.0), "n": Figure(1.0, 0, 100.0)}
    published.busy = (1.5, 100.0)
    assert [(each.labels, each.value) for each in published.query(REQUIRED_REPLICAS, M)] == [
        ({"scaler": "scaler", "model": "m"}, 2.5)
    ]
    assert [each.value for each in published.query(LAG)] == [7.0, 0.0]
    assert [each.value for each in published.query(AGGREGATOR_BUSY)] == [1.5]


def test_one_series_that_is_old_makes_the_whole_answer_an_error() -> None:
    published = publish(ManualClock(100.0))
    published.figures = {"m": Figure(2.5, 7, 100.0), "n": Figure(1.0, 0, 70.0)}
    published.trouble = "Kafka does not answer"
    assert len(published.query(REQUIRED_REPLICAS, M)) == 1
    with pytest.raises(StaleInputError, match="n is not known: Kafka does not answer"):
        published.query(REQUIRED_REPLICAS)


def test_a_figure_grows_old_while_nothing_replaces_it() -> None:
    clock = ManualClock(100.0)
    published = publish(clock, "m")
    published.figures = {"m": Figure(2.5, 7, 100.0)}
    published.busy = (0.5, 100.0)
    clock.now_s = 121.0
    for metric in (REQUIRED_REPLICAS, LAG, AGGREGATOR_BUSY):
        with pytest.raises(StaleInputError):
            published.query(metric, M if metric != AGGREGATOR_BUSY else {})
    assert published.ages_s() == {"m": (None, 21.0)}


def test_a_figure_holds_until_it_is_older_than_it_may_be() -> None:
    clock = ManualClock(100.0)
    published = publish(clock)
    published.figures = {"m": Figure(2.5, 7, 100.0)}
    published.busy = (0.5, 100.0)
    clock.now_s = 120.0
    assert [each.value for each in published.query(REQUIRED_REPLICAS, M)] == [2.5]
    assert [each.value for each in published.query(AGGREGATOR_BUSY)] == [0.5]
    assert published.ages_s() == {"m": (2.5, 20.0), "n": (None, 20.0)}


def test_before_anything_was_measured_there_is_no_figure() -> None:
    published = publish(ManualClock(100.0))
    with pytest.raises(StaleInputError, match=r": nothing was measured yet$"):
        published.query(REQUIRED_REPLICAS, M)
    with pytest.raises(StaleInputError):
        published.query(AGGREGATOR_BUSY)


@pytest.mark.parametrize(("metric", "wanted"), [("other", {}), (REQUIRED_REPLICAS, {"model": "x"})])
def test_what_there_is_not_is_unknown(metric: str, wanted: dict[str, str]) -> None:
    with pytest.raises(UnknownMetric):
        publish(ManualClock(100.0)).query(metric, wanted)


@pytest.mark.parametrize(
    ("own", "knows", "of_peers", "told"),
    [(2.0, True, 3.0, 3.0), (3.0, True, 2.0, 3.0), (3.0, False, 2.0, 2.0), (3.0, False, None, 3.0)],
)
def test_the_most_that_any_scaler_replica_that_knows_requires_is_told(
    own: float, knows: bool, of_peers: float | None, told: float
) -> None:
    published = publish(ManualClock(100.0), "m")
    published.figures = {"m": Figure(own, 7, 90.0, saw_scale_up=knows), "n": Figure(9.0, 0, 95.0)}
    published.of_peers = {"n": 50.0} | ({"m": of_peers} if of_peers is not None else {})
    assert [each.value for each in published.query(REQUIRED_REPLICAS)] == [told]
    assert published.ages_s() == {"m": (told, 10.0)}


Series = dict[tuple[str, str], float]


def shown(published: Published, models: dict[str, str]) -> Series:
    """The values by metric and model."""
    buffer = MetricsBuffer()
    show(buffer, published, models)
    return {
        (metric.name, str((point.attributes or {})["model"])): point.value
        for metric in buffer.collect().metrics
        if metric.name != "tokenbatch.scaler.figure"
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
        ("tokenbatch.required_replicas", "org/MiniLM"): 2.5,
        ("tokenbatch.scaler.input_age", "org/MiniLM"): 5.0,
        ("tokenbatch.scaler.input_age", "bge"): 40.0,
    }
