from __future__ import annotations

import asyncio
import re
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import Metric

from aggregator.errors import Code
from aggregator.observability.metrics import STEP_SECONDS, Metrics
from aggregator.reports import gauges
from aggregator.reports.gauges import GAUGES, OnLoop, Values, gauge_values
from aggregator.request.request import Backlog
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.replica_choice import SendReason
from aggregator.scheduler.work_item import Task
from k8s.pod.metrics_buffer import Instrument, MetricsBuffer
from modelserver.metrics import DURATION_BOUNDS_S
from tests.support.faked_pipeline import DESCRIPTION, FakedPipeline, new_engine
from tests.support.virtual_time import in_virtual_time

REPORT = StepReport(600, 0.02, 0, 0.001, 0.0)
BATCH = Batch("b", [], 600, Replica("a:1", None, 640, ReplicaPolicy()), SendReason.FULL, None, 0.0, 1.0, 640)
SOME: Values = {Instrument("some", "1", "a gauge"): {(): 1.0}}
BACKLOGS = [Backlog("kafka", "t", 3, "m", 7, 2, paused=True, outranked=True), Backlog("kafka", "t", 4, "m", 0)]
PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"


def points(buffer: MetricsBuffer) -> dict[str, list[Any]]:
    return {metric.name: list(metric.data.data_points) for metric in buffer.collect().metrics}


def exercised(metrics: Metrics) -> None:
    metrics.batch_sent("a:1", "full", 600, 60, 640)
    metrics.batch_done(BATCH, Task.EMBED, REPORT, 0.0)
    metrics.answered("kafka", {Code.OK: 2, Code.NOT_FOUND: 1}, [0.1, 0.2, 0.4])
    metrics.retries.add(5, Code.UNAVAILABLE.name)
    metrics.dead_letters.add(1, Code.DATA_LOSS.name)
    metrics.expired.add(2)
    metrics.coalesced.add(3)
    metrics.commit_failures.add(1)
    metrics.rebalances.add(1)
    metrics.records_lost.add(9, "t")
    metrics.tokenizer_checked(1, 0)


@in_virtual_time
async def test_every_metric_that_the_docs_list_has_its_name_unit_and_attributes() -> None:
    buffer = MetricsBuffer()
    metrics = Metrics(buffer, slo_s=0.3)
    async with FakedPipeline(new_engine()).started() as faked:
        await faked.embed("5 5")
        buffer.gauges(GAUGES, OnLoop(lambda: gauge_values(faked.pipeline.models, BACKLOGS)))
        exercised(metrics)
        shown = {metric.name: metric for metric in buffer.collect().metrics}
    page = PAGE.read_text(encoding="utf-8").partition("\n## Aggregator\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| \w+ \| (\S+) \| (.*?) \|", page, re.MULTILINE)
    listed = {name: (unit, {*keys.split(", ")} - {""}) for name, unit, keys in rows}
    told = {name: (metric.unit, {*_first(metric).attributes}) for name, metric in shown.items() if _first(metric)}
    assert told == {name: listed[name] for name in told}
    assert len(told) > 24


def _first(metric: Metric) -> Any:
    return next(iter(metric.data.data_points), None)


def test_a_batch_shows_its_size_its_fill_and_its_reason() -> None:
    buffer = MetricsBuffer()
    exercised(Metrics(buffer))
    shown = points(buffer)
    assert shown["tokenbatch.batch.fill_ratio"][0].sum == 600 / 640
    assert shown["tokenbatch.batch.tokens"][0].sum == 600
    assert shown["tokenbatch.batch.queries"][0].sum == 60
    assert shown["tokenbatch.batch.sends"][0].attributes == {"replica": "a:1", "reason": "full"}
    assert shown["tokenbatch.engine.duration"][0].sum == 0.02
    assert shown["tokenbatch.engine.idle"][0].value == 0.001


@pytest.mark.parametrize("bounds_s", [STEP_SECONDS, DURATION_BOUNDS_S])
def test_steps_of_a_gpu_are_told_apart_within_a_half(bounds_s: tuple[float, ...]) -> None:
    assert list(bounds_s) == sorted(set(bounds_s))
    short = [bound_s for bound_s in bounds_s if bound_s <= 0.004]
    assert (short[0], short[-1]) == (0.0002, 0.004)
    assert max(after / before for before, after in pairwise(short)) <= 1.5 + 1e-9
    assert sum(bound_s < 0.00036 for bound_s in short) < sum(bound_s < 0.00046 for bound_s in short)


def test_a_batch_is_an_embeddings_operation_by_the_conventions() -> None:
    buffer = MetricsBuffer()
    metrics = Metrics(buffer)
    metrics.embedded("m", BATCH, Code.OK, 0.25)
    metrics.embedded("m", BATCH, Code.UNAVAILABLE, 0.5)
    shown = points(buffer)
    labels = {
        "gen_ai.request.model": "m",
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "tokenbatch",
    }
    times = {point.sum: point.attributes for point in shown["gen_ai.client.embeddings.duration"]}
    assert times == {0.25: labels, 0.5: labels | {"error.type": "UNAVAILABLE"}}
    (tokens,) = shown["gen_ai.client.embeddings.operation.input_tokens"]
    assert (tokens.sum, tokens.attributes) == (600, labels)


def test_answers_are_counted_by_code_and_the_late_ones_apart() -> None:
    buffer = MetricsBuffer()
    metrics = Metrics(buffer, slo_s=0.3)
    metrics.answered("kafka", {Code.OK: 2, Code.NOT_FOUND: 1}, [0.1, 0.2, 0.4])
    metrics.answered("grpc", {Code.OK: 1}, [0.5])
    shown = points(buffer)
    requests = {
        (point.attributes["source"], point.attributes["code"]): point.value for point in shown["tokenbatch.requests"]
    }
    assert requests == {("kafka", "OK"): 2, ("kafka", "NOT_FOUND"): 1, ("grpc", "OK"): 1}
    violations = {point.attributes["source"]: point.value for point in shown["tokenbatch.slo.violations"]}
    assert violations == {"kafka": 1, "grpc": 1}
    assert {point.attributes["source"]: point.count for point in shown["tokenbatch.e2e.duration"]} == {
        "kafka": 3,
        "grpc": 1,
    }


@in_virtual_time
async def test_gauges_tell_of_queues_replicas_and_partitions_only_what_is_known() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        found = gauge_values(faked.pipeline.models, BACKLOGS)
        shown = {instrument.name: series for instrument, series in found.items()}
        address, model = DESCRIPTION.address, DESCRIPTION.model
        assert shown["tokenbatch.queue.tokens"] == {
            (model, name): 0 for name in ("interactive", "default", "background")
        }
        assert shown["tokenbatch.replica.state"] == {(address, model, "idle"): 1}
        assert shown["tokenbatch.replica.inflight_tokens"] == {(address, model): 0}
        assert shown["tokenbatch.consumer.lag"] == {("t", "3"): 7, ("t", "4"): 0}
        assert shown["tokenbatch.consumer.uncommitted_span"] == {("t", "3"): 2, ("t", "4"): 0}
        assert shown["tokenbatch.consumer.paused"] == {("t", "3"): True, ("t", "4"): False}
        assert shown["tokenbatch.consumer.outranked"] == {("t", "3"): True, ("t", "4"): False}


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is waited for however long it takes."""
    monkeypatch.setattr(gauges, "_TIMEOUT_S", 60.0)


@pytest.mark.usefixtures("patience")
async def test_gauges_are_read_on_the_loop_whichever_thread_asks() -> None:
    threads: list[threading.Thread] = []

    def take() -> Values:
        threads.append(threading.current_thread())
        return SOME

    on_loop = OnLoop(take)
    assert await asyncio.to_thread(on_loop) is SOME
    assert on_loop() is SOME
    assert threads == [threading.current_thread()] * 2


@pytest.mark.usefixtures("patience")
async def test_while_the_loop_is_busy_the_last_values_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop = OnLoop(lambda: SOME)
    await asyncio.to_thread(on_loop)
    monkeypatch.setattr(gauges, "_TIMEOUT_S", 0.02)
    found: list[Values] = []
    asking = threading.Thread(target=lambda: found.append(on_loop()))
    asking.start()
    asking.join()  # on the loop, which does not come round
    assert [one is SOME for one in found] == [True]


def test_what_alerts_watch_has_a_series_before_anything_happens() -> None:
    buffer = MetricsBuffer()
    metrics = Metrics(buffer)
    metrics.records_lost.add(0, "t")
    shown = points(buffer)
    assert {point.attributes["code"]: point.value for point in shown["tokenbatch.dead_letters"]} == {
        "DATA_LOSS": 0,
        "INTERNAL": 0,
        "INVALID_ARGUMENT": 0,
        "PERMISSION_DENIED": 0,
    }
    assert [(point.attributes["topic"], point.value) for point in shown["tokenbatch.consumer.lost"]] == [("t", 0)]


def test_texts_both_tokenizers_read_are_counted_and_those_that_differ() -> None:
    buffer = MetricsBuffer()
    metrics = Metrics(buffer)
    metrics.tokenizer_checked(1, 0)
    metrics.tokenizer_checked(3, 2)
    shown = points(buffer)
    assert shown["tokenbatch.tokenizer.checks"][0].value == 4
    assert shown["tokenbatch.tokenizer.differences"][0].value == 2


def test_what_the_intake_counts_reaches_the_metrics() -> None:
    buffer = MetricsBuffer()
    metrics = Metrics(buffer)
    metrics.rebalances.add(1)
    metrics.commit_failures.add(1)
    metrics.commit_failures.add(1)
    metrics.records_lost.add(5, "t")
    metrics.records_lost.add(2, "t")
    metrics.corrupt_batches.add(1, "t")
    shown = points(buffer)
    assert [point.value for point in shown["tokenbatch.consumer.rebalances"]] == [1]
    assert [point.value for point in shown["tokenbatch.commit.failures"]] == [2]
    assert [(point.attributes["topic"], point.value) for point in shown["tokenbatch.consumer.lost"]] == [("t", 7)]
    assert [(point.attributes["topic"], point.value) for point in shown["tokenbatch.consumer.corrupt"]] == [("t", 1)]
