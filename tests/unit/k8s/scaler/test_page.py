"""The scaler's page: its figures in their terms, what is missing, and where each aggregator's page is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from k8s.scaler.measuring.demand import Load
from k8s.scaler.measuring.figures import Figure
from k8s.scaler.page import ScalerFeed
from k8s.scaler.published import Published
from k8s.scaler.settings import PolicySettings
from tests.support.virtual_time import ManualClock

AGGREGATORS: Any = SimpleNamespace(seen=lambda: [("10.0.0.7:50052", 0.5, 98.0)])
LOAD = Load(3000.0, 100.0, 4000.0, 99.0, replicas=2, ready=2)


def feed(figures: dict[str, Figure], clock: ManualClock) -> ScalerFeed:
    published = Published(["m"], "tokenbatch-scaler", 20.0, clock)
    published.figures = figures
    published.explain = lambda: "Kafka does not answer"
    return ScalerFeed(published, AGGREGATORS, PolicySettings(), clock)


def look(feed: ScalerFeed, *, full: bool = False) -> dict[str, Any]:
    event, all_of_it = feed.read(full=full)
    shown = all_of_it if full else event
    assert isinstance(shown, dict)
    return shown


def test_a_figure_is_shown_in_its_terms_with_the_servers_that_are_missing() -> None:
    event = look(feed({"m": Figure(4.2, 7, 99.0, load=LOAD)}, ManualClock(100.0)))
    (terms,) = event["scaling"]
    assert (terms["arriving_tokens_per_s"], terms["backlog_tokens"], terms["required"]) == (3000.0, 100.0, 4.2)
    assert (terms["serving"], terms["missing"]) == (2, 3)
    assert event["bottleneck"] == "Model servers are short: 3 more of m would hold the target."
    assert event["problems"] == [["m requires 5 model servers and has 2.", "tokenbatchreplicasshort"]]


def test_without_a_deployment_the_servers_that_aggregators_use_count() -> None:
    load = Load(3000.0, 100.0, 4000.0, 99.0)
    event = look(feed({"m": Figure(1.0, 7, 99.0, load=load, replicas_in_use=1)}, ManualClock(100.0)))
    assert event["scaling"][0]["serving"] == 1
    assert event["bottleneck"] == "The model servers that serve hold the target."
    assert not event["problems"]


def test_an_old_input_is_named() -> None:
    event = look(feed({"m": Figure(1.0, 7, 70.0, load=LOAD)}, ManualClock(100.0)))
    assert event["problems"] == [["An input is missing: Kafka does not answer.", "tokenbatchscalerblind"]]
    assert look(feed({}, ManualClock(100.0)))["bottleneck"] == "Nothing was measured yet."
