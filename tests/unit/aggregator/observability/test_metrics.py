from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from aggregator.errors import Code
from aggregator.observability import snapshot
from aggregator.observability.gathered import Gatherer
from aggregator.observability.metrics import Metrics
from aggregator.observability.snapshot import (
    OnLoop,
    PartitionFigures,
    QueueFigures,
    ReplicaFigures,
    Snapshot,
    gauge_values,
)
from aggregator.replicas.engine import StepResult
from aggregator.scheduler.replica import StepReport
from aggregator.sources.kafka.consumer.reader import IntakeCounts

RESULT = StepResult(np.zeros((1, 1), np.float32), (), StepReport(600, 0.02, 0, 0.001, 0.0))
EVERYTHING = Snapshot(
    queues=(QueueFigures("m", "interactive", 12, 0.5),),
    replicas=(ReplicaFigures("a:1", "m", "idle", 0, 600, 640, 1.1),),
    partitions=(PartitionFigures("t", 3, 7, 70.0, 2, paused=True),),
)
CONTRACT = {
    "embed.queue.tokens": ("{token}", {"model", "priority"}),
    "embed.queue.age": ("s", {"model", "priority"}),
    "embed.batch.tokens": ("{token}", {"replica"}),
    "embed.batch.queries": ("{query}", {"replica"}),
    "embed.batch.fill_ratio": ("1", {"replica"}),
    "embed.batch.sends": ("{batch}", {"replica", "reason"}),
    "embed.token_budget": ("{token}", {"replica", "model"}),
    "embed.saturation_point": ("{token}", {"replica", "model"}),
    "embed.sla.pressure": ("1", {"replica", "model"}),
    "embed.engine.duration": ("s", {"replica"}),
    "embed.e2e.duration": ("s", {"source"}),
    "embed.slo.violations": ("{request}", {"source"}),
    "embed.requests": ("{request}", {"source", "code"}),
    "embed.retries": ("{query}", {"code"}),
    "embed.replies.unwritten": ("{reply}", {"reason"}),
    "generate.deltas.unwritten": ("{record}", set()),
    "embed.dead_letters": ("{record}", {"code"}),
    "embed.expired": ("{query}", set[str]()),
    "embed.coalesced": ("{query}", set[str]()),
    "embed.replica.inflight_tokens": ("{token}", {"replica", "model"}),
    "embed.replica.state": ("1", {"replica", "model", "state"}),
    "embed.consumer.lag": ("{record}", {"topic", "partition"}),
    "embed.consumer.lag_tokens": ("{token}", {"topic", "partition"}),
    "embed.consumer.uncommitted_span": ("{record}", {"topic", "partition"}),
    "embed.consumer.paused": ("1", {"topic", "partition"}),
    "embed.consumer.rebalances": ("{rebalance}", set[str]()),
    "embed.commit.failures": ("{commit}", set[str]()),
}


def points(gatherer: Gatherer) -> dict[str, list[Any]]:
    return {metric.name: list(metric.data.data_points) for metric in gatherer.collect().metrics}


def exercised(metrics: Metrics) -> None:
    metrics.batch_sent("a:1", "full", 600, 60, 640)
    metrics.batch_done("a:1", RESULT)
    metrics.answered("kafka", {Code.OK: 2, Code.NOT_FOUND: 1}, [0.1, 0.2, 0.4])
    metrics.retried(Code.UNAVAILABLE, 5)
    metrics.dead_lettered(Code.DATA_LOSS, 1)
    metrics.expired(2)
    metrics.coalesced(3)
    metrics.commit_failed()
    metrics.rebalanced()
    metrics.records_lost("t", 9)
    metrics.tokenizer_checked(1, 0)


async def test_every_metric_of_the_contract_has_its_name_unit_and_attributes() -> None:
    gatherer = Gatherer()
    metrics = Metrics(gatherer, slo_s=0.3)
    metrics.watch(lambda: EVERYTHING)
    exercised(metrics)
    shown = {metric.name: metric for metric in gatherer.collect().metrics}
    for name, (unit, keys) in CONTRACT.items():
        point: Any = next(iter(shown[name].data.data_points))
        assert (shown[name].unit, set(point.attributes or ())) == (unit, keys), name
        assert shown[name].description, name


def test_a_batch_shows_its_size_its_fill_and_its_reason() -> None:
    gatherer = Gatherer()
    exercised(Metrics(gatherer))
    shown = points(gatherer)
    assert shown["embed.batch.fill_ratio"][0].sum == 600 / 640
    assert shown["embed.batch.tokens"][0].sum == 600
    assert shown["embed.batch.queries"][0].sum == 60
    assert shown["embed.batch.sends"][0].attributes == {"replica": "a:1", "reason": "full"}
    assert shown["embed.engine.duration"][0].sum == 0.02
    assert shown["embed.engine.idle"][0].value == 0.001


def test_answers_are_counted_by_code_and_the_late_ones_apart() -> None:
    gatherer = Gatherer()
    metrics = Metrics(gatherer, slo_s=0.3)
    metrics.answered("kafka", {Code.OK: 2, Code.NOT_FOUND: 1}, [0.1, 0.2, 0.4])
    metrics.answered("grpc", {Code.OK: 1}, np.array([0.5]))
    shown = points(gatherer)
    requests = {
        (point.attributes["source"], point.attributes["code"]): point.value for point in shown["embed.requests"]
    }
    assert requests == {("kafka", "OK"): 2, ("kafka", "NOT_FOUND"): 1, ("grpc", "OK"): 1}
    violations = {point.attributes["source"]: point.value for point in shown["embed.slo.violations"]}
    assert violations == {"kafka": 1, "grpc": 1}
    assert {point.attributes["source"]: point.count for point in shown["embed.e2e.duration"]} == {"kafka": 3, "grpc": 1}


def test_what_is_not_known_has_no_series() -> None:
    bare = Snapshot(
        replicas=(ReplicaFigures("a:1", "m", "idle", 0, 600),),
        partitions=(PartitionFigures("t", 0, None, None, 0, paused=False),),
    )
    shown: Mapping[str, int] = {instrument.name: len(series) for instrument, series in gauge_values(bare).items()}
    assert shown["embed.replica.state"] == shown["embed.consumer.paused"] == 1
    absent = ("embed.saturation_point", "embed.sla.pressure", "embed.consumer.lag", "embed.queue.tokens")
    assert [shown[name] for name in absent] == [0] * len(absent)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is waited for however long it takes."""
    monkeypatch.setattr(snapshot, "_TIMEOUT_S", 60.0)


@pytest.mark.usefixtures("patience")
async def test_a_snapshot_is_taken_on_the_loop_whichever_thread_asks() -> None:
    threads: list[threading.Thread] = []

    def take() -> Snapshot:
        threads.append(threading.current_thread())
        return EVERYTHING

    on_loop = OnLoop(take)
    assert await asyncio.to_thread(on_loop) is EVERYTHING
    assert on_loop() is EVERYTHING
    assert threads == [threading.current_thread()] * 2


@pytest.mark.usefixtures("patience")
async def test_while_the_loop_is_busy_the_last_snapshot_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop = OnLoop(lambda: EVERYTHING)
    await asyncio.to_thread(on_loop)
    monkeypatch.setattr(snapshot, "_TIMEOUT_S", 0.02)
    found: list[Snapshot] = []
    asking = threading.Thread(target=lambda: found.append(on_loop()))
    asking.start()
    asking.join()  # on the loop, which does not come round
    assert [one is EVERYTHING for one in found] == [True]


@pytest.mark.usefixtures("patience")
async def test_a_snapshot_that_fails_is_the_readers_to_hear_of() -> None:
    def take() -> Snapshot:
        raise ValueError("no figures")

    with pytest.raises(ValueError, match="no figures"):
        await asyncio.to_thread(OnLoop(take))


def test_what_alerts_watch_has_a_series_before_anything_happens() -> None:
    gatherer = Gatherer()
    metrics = Metrics(gatherer)
    metrics.records_lost("t", 0)
    shown = points(gatherer)
    assert {point.attributes["code"]: point.value for point in shown["embed.dead_letters"]} == {
        "DATA_LOSS": 0,
        "INTERNAL": 0,
        "INVALID_ARGUMENT": 0,
        "PERMISSION_DENIED": 0,
    }
    assert [(point.attributes["topic"], point.value) for point in shown["embed.consumer.lost"]] == [("t", 0)]


def test_the_clock_s_skew_is_asked_for_when_it_is_read() -> None:
    gatherer = Gatherer()
    Metrics(gatherer).watch_clock(lambda: -300.5)
    assert [point.value for point in points(gatherer)["embed.clock.skew"]] == [-300.5]


def test_what_the_intake_counts_reaches_the_metrics() -> None:
    gatherer = Gatherer()
    counts = IntakeCounts(Metrics(gatherer))
    counts.rebalanced()
    counts.commit_failed("RequestTimedOutError")
    counts.commit_failed("RequestTimedOutError")
    counts.lost("t", 5)
    counts.skipped_corrupt("t", 2)
    counts.found_corrupt("t")
    shown = points(gatherer)
    assert [point.value for point in shown["embed.consumer.rebalances"]] == [1]
    assert [point.value for point in shown["embed.commit.failures"]] == [2]
    assert [(point.attributes["topic"], point.value) for point in shown["embed.consumer.lost"]] == [("t", 7)]
    assert [(point.attributes["topic"], point.value) for point in shown["embed.consumer.corrupt"]] == [("t", 1)]
    assert counts == IntakeCounts(counts.observer, 1, 5, 1, 2, {"RequestTimedOutError": 2})
