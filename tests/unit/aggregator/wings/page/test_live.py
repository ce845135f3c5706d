"""What the page shows of a pipeline that works among fakes, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Model, Models
from aggregator.replicas.targets import Target
from aggregator.reports.state import AggregatorState
from aggregator.request.request import Backlog
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.replica import ReplicaPolicy
from aggregator.scheduler.work_item import Task
from aggregator.wings.generation.costs import GenerationCosts
from aggregator.wings.generation.replica import GeneratingReplica
from aggregator.wings.page.live import LiveFeed
from aggregator.wings.page.points import tokens_by_place
from aggregator.wings.scaler.measuring.required_replicas import DRAIN_S, UTILISATION
from tests.support.fake_source import KAFKA
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.faked_pipeline import CURVE, DESCRIPTION, MODEL, FakeCounting, FakedPipeline, new_engine
from tests.support.virtual_time import in_virtual_time

COSTS = GenerationCosts(fixed_s=0.01, per_sequence_s=0.001, per_token_s=0.0001, kv_tokens=4096, max_sequences=8)
GENERATING = replace(DESCRIPTION, details=COSTS)
BACKLOGS = [Backlog("kafka", "t", 3, MODEL, 7, 2, paused=True), Backlog("kafka", "t", 4, MODEL, 0)]


class Servers:
    def __init__(self, *troubles: tuple[str, str]) -> None:
        self._troubles = troubles

    def troubles(self) -> Sequence[tuple[Target, str]]:
        return [(Target(address, MODEL), why) for address, why in self._troubles]


class Looker:
    """Reads events as viewers get them."""

    def __init__(self, faked: FakedPipeline, servers: Servers | None = None, **options: Any) -> None:
        troubles = (servers or Servers()).troubles
        state = AggregatorState(faked.pipeline.models, faked.metrics, faked.pipeline.demand, troubles, **options)
        self.feed = LiveFeed(state, clock=asyncio.get_running_loop().time)

    def look(self, *, full: bool = False) -> dict[str, Any]:
        event, all_of_it = self.feed.read_on_loop(full=full)
        shown = all_of_it if full else event
        found: dict[str, Any] = json.loads(msgspec.json.encode(shown))
        return found


@in_virtual_time
async def test_a_batch_is_in_the_next_event_only_but_everything_has_it() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        looker = Looker(faked)
        looker.look()
        await faked.embed("1 2 3")
        event = looker.look()
        (batch,) = event["batches"]
        assert batch[0:2] == ["server-1:1", "embed"]
        assert batch[3] == pytest.approx(CURVE.time_s(5), rel=0.01)
        assert batch[4:8] == [5, 100, 1, "idle"]
        assert event["now"] - batch[2] < 0.1
        assert not looker.look()["batches"]
        everything = looker.look(full=True)
        assert everything["batches"] == [batch]
        assert len(everything["history"]) == 4


@in_virtual_time
async def test_the_queue_is_shown_by_class_and_the_rates_by_source() -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        looker = Looker(faked)
        looker.look()
        engine.gate.clear()
        await faked.occupy()
        faked.produce(faked.request("1 2 3 4 5 6 7 8", source=KAFKA))
        await asyncio.sleep(1.0)
        point = looker.look()["point"]
        assert point["queued"] == [0, 10, 0]
        assert point["oldest_s"] == pytest.approx(1.0, rel=0.05)
        assert point["arrived"] == pytest.approx(3.0, rel=0.05)
        assert point["arrived_tokens"] == pytest.approx(16.0, rel=0.05)
        engine.gate.set()
        await asyncio.sleep(0.5)
        point = looker.look()["point"]
        assert point["answered"] == pytest.approx(6.0, rel=0.05)  # queries, as those that arrive
        assert point["answered_tokens"] == pytest.approx(32.0, rel=0.05)
        assert point["queued"] == [0, 0, 0]


@in_virtual_time
async def test_kafka_is_shown_by_partition_and_a_paused_one_is_noted() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        faked.produce(faked.request("1 2 3", source=KAFKA))
        await asyncio.sleep(0.01)
        event = Looker(faked, backlogs=lambda: BACKLOGS).look()
    tokens = 7 * faked.pipeline.demand.tokens_per_record(MODEL)
    assert tokens >= 7 * 3
    assert event["partitions"] == [["t", 3, 7, tokens, 2, True], ["t", 4, 0, 0.0, 0, False]]
    assert event["left"] == [7, tokens]
    waits = "Kafka: read as fast as the queue empties (1 of 2 partitions waits). Nothing to do for a bulk job."
    assert [waits, "partitions-wait-for-the-queue", "notice"] in event["problems"]


@in_virtual_time
async def test_the_formula_is_shown_in_its_terms_and_names_missing_servers() -> None:
    engine = new_engine()
    async with FakedPipeline(engine, max_held_tokens=10_000_000).started() as faked:
        looker = Looker(faked)
        looker.look()
        event: dict[str, Any] = {}
        for each in range(4):
            texts = (f"{each} {number} 3 4 5 6 7 8" for number in range(3000))
            faked.produce(*(faked.request(text, source=KAFKA) for text in texts))
            await asyncio.sleep(0.5)
            event = looker.look()
        (terms,) = event["scaling"]
        assert terms["serving"] == 1
        assert terms["pod_tokens_per_s"] == pytest.approx(100 / CURVE.time_s(100), rel=0.1)
        backlog = terms["backlog_tokens"] / DRAIN_S
        required = (terms["arriving_tokens_per_s"] + backlog) / terms["pod_tokens_per_s"] / UTILISATION
        assert terms["required"] == pytest.approx(required)
        assert terms["missing"] > 1
        assert (
            event["bottleneck"] == f"Model servers are saturated: {terms['missing']} more would keep up with the load."
        )


@in_virtual_time
async def test_tokens_are_shown_in_the_queue_at_the_servers_and_in_completion() -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        looker = Looker(faked)
        event = looker.look()
        assert event["work"] == [["queue", 0], ["model servers", 0], ["completion", 0]]
        assert event["most"] == {"held": 10_000, "background": 5_000, "computing": 2 * 100}
        engine.gate.clear()
        await faked.occupy()
        call = asyncio.create_task(faked.embed("9 9 9"))
        await asyncio.sleep(0.1)
        (queue, servers, completion) = (tokens for _, tokens in looker.look()["work"])
        assert (queue, completion) == (5, 0)
        assert servers > 0
        engine.gate.set()
        await call
        assert looker.look()["work"] == [["queue", 0], ["model servers", 0], ["completion", 0]]


@in_virtual_time
async def test_time_that_nobody_saw_has_no_rates() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        looker = Looker(faked)
        looker.look()
        await faked.embed("1 2 3")
        await asyncio.sleep(0.5)
        assert looker.look()["point"]["arrived"] > 0.0
        await faked.embed("1 2 3")
        await asyncio.sleep(30.0)
        point = looker.look()["point"]
        rates = ("arrived", "arrived_tokens", "answered", "answered_tokens", "refused", "expired", "coalesced")
        assert [point[name] for name in rates] == [None] * len(rates)
        assert point["latency"] == {}
        assert len(looker.look(full=True)["history"]) == 4  # under a minute: what was seen before is still shown


@in_virtual_time
async def test_a_page_that_is_loaded_takes_nothing_from_those_who_look() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        looker = Looker(faked)
        first: Any = looker.feed.snapshot_on_loop()
        assert (first["has_rates"], len(first["history"]), len(first["lanes"])) == (False, 1, 1)
        await faked.embed("1 2 3")
        loaded: Any = looker.feed.snapshot_on_loop()
        assert (loaded["has_rates"], len(loaded["history"]), len(loaded["batches"])) == (True, 2, 1)
        again: Any = looker.feed.snapshot_on_loop()
        assert len(again["history"]) == 2, "who looks already takes the points"
        assert len(looker.look()["batches"]) == 1
        assert (loaded["up_s"], bool(loaded["release"])) == (pytest.approx(loaded["now"] - first["now"], abs=0.1), True)


@in_virtual_time
async def test_a_server_slower_than_its_curve_is_named() -> None:
    async with FakedPipeline(new_engine(slowness=4.0)).started() as faked:
        looker = Looker(faked)
        for number in range(60):
            await faked.embed(f"{number} 2 3")
        event = looker.look()
    assert event["lanes"][0]["scale"] == pytest.approx(4.0, rel=0.1)
    (text,) = (text for text, _, severity in event["problems"] if severity == "problem")
    assert text.startswith("Model server server-1:1 computes 4.0 times as long")


def revision_that_generates() -> tuple[Model, GeneratingReplica]:
    words, admission = FakeTokenizer(), Admission(AdmissionPolicy(10_000))
    revision = ModelRevision(GENERATING, words, FakeCounting(words), DispatchPolicy())
    replica = GeneratingReplica("a", None, 500, ReplicaPolicy(), kv_tokens=4096, max_sequences=8)
    revision.dispatcher.replicas["a"] = replica
    model = Model("m", (), admission)
    model.tasks[Task.GENERATE].revisions["r"] = revision
    admission.charge(100, refusable=True)
    return model, replica


def test_tokens_of_running_sequences_are_at_the_servers_until_they_end() -> None:
    model, replica = revision_that_generates()
    models = Models([model], DispatchPolicy(), None, FakeCounting)
    replica.began()
    assert tokens_by_place(models) == (0, 100, 0)
    replica.finished()
    assert tokens_by_place(models) == (0, 0, 100)


@in_virtual_time
async def test_while_the_event_loop_does_not_run_the_viewers_hear_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator.wings.page.live._TIMEOUT_S", 0.01)
    async with FakedPipeline(new_engine()).started() as faked:
        feed = Looker(faked).feed
        event, everything = feed.read(full=True)  # on the loop, which it holds up
        assert isinstance(event, dict)
        assert set(event) == {"silent_s"}
        assert everything is None
        assert feed.snapshot() is None


@in_virtual_time
async def test_no_text_and_no_tenant_is_in_an_event() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        looker = Looker(faked)
        looker.look()
        await faked.embed("4711 4712", tenant="acme-corporation")
        for full in (False, True):
            text = json.dumps(looker.look(full=full))
            assert "4711" not in text
            assert "acme" not in text
