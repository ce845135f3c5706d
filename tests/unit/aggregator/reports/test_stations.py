"""The shares of time of the stations, by samples."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Model, Models
from aggregator.engine import GenerationCosts
from aggregator.reports import stations
from aggregator.reports.stations import Shares, Station, Stations
from aggregator.scheduler.bounds import Admission, AdmissionPolicy
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.generating_replica import GeneratingReplica
from aggregator.scheduler.replica import ReplicaPolicy
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.faked_pipeline import DESCRIPTION, FakeCounting, FakedPipeline, new_engine
from tests.support.virtual_time import ManualClock, in_virtual_time

COSTS = GenerationCosts(fixed_s=0.01, per_sequence_s=0.001, per_token_s=0.0001, kv_tokens=4096, max_sequences=8)
GENERATING = replace(DESCRIPTION, generation=COSTS)
ROOT = Path(__file__).parents[4]


def test_each_station_is_found_by_a_file_that_exists() -> None:
    own = [part for part, _ in stations.PLACES if part.startswith("/aggregator/")]
    assert all((ROOT / part.strip("/")).exists() for part in own)
    assert {station for _, station in stations.PLACES} == set(Station) - {Station.MODEL_SERVERS}


def test_the_time_on_the_cpu_is_divided_by_where_the_loop_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used = ManualClock(0.0), ManualClock(0.0)
    monkeypatch.setattr("aggregator.reports.stations.time.thread_time", used)
    watched = Stations(Models([], DispatchPolicy(), None, FakeCounting), lambda: False, clock)

    def seen(path: str) -> None:
        scope: dict[str, object] = {}
        exec(compile("def at_work(sample):\n    sample()", path, "exec"), scope)  # noqa: S102
        thread = threading.Thread(target=watched.sample)

        def sample() -> None:
            thread.start()
            thread.join()

        scope["at_work"](sample)  # type: ignore[operator]

    for path, times in (("/x/aggregator/admission/enqueue.py", 3), ("/x/aiokafka/producer/sender.py", 1)):
        for _ in range(times):
            seen(path)
    clock.now_s, used.now_s = 1.0, 0.4
    busy, shares = watched.read()
    assert busy == pytest.approx(0.4)
    assert shares[Station.ADMIT].working == pytest.approx(0.3, rel=0.15)
    assert shares[Station.COMPLETE].working == pytest.approx(0.1, rel=0.3)
    assert shares[Station.QUEUE] == Shares(0.0, 0.0)


@in_virtual_time
async def test_a_queue_whose_servers_are_all_busy_is_held_up_and_so_is_intake_that_is_paused() -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        paused = True
        watched = Stations(faked.pipeline.models, lambda: paused, asyncio.get_running_loop().time)
        watched.look()
        engine.gate.clear()
        await faked.occupy()
        watched.look()
        call = asyncio.create_task(faked.embed("9 9 9"))
        await asyncio.sleep(0.1)
        watched.look()
        watched.look()
        _, shares = watched.read()
        assert shares[Station.RECEIVE] == Shares(0.0, 1.0)
        assert shares[Station.QUEUE].held_up == pytest.approx(0.5)
        assert shares[Station.MODEL_SERVERS].working == pytest.approx(0.75)
        assert shares[Station.COMPLETE].held_up == 0.0
        _, shares = watched.read()
        assert shares[Station.QUEUE].held_up == 0.0
        engine.gate.set()
        await call


def test_running_sequences_hold_tokens_without_holding_up_what_completes() -> None:
    words, admission = FakeTokenizer(), Admission(AdmissionPolicy(10_000))
    revision = ModelRevision(GENERATING, words, FakeCounting(words), DispatchPolicy())
    replica = GeneratingReplica("a", None, 500, ReplicaPolicy(), kv_tokens=4096, max_sequences=8)
    revision.dispatcher.replicas["a"] = replica
    model = Model("m", (), admission)
    model.revisions["r"] = revision
    watched = Stations(Models([model], DispatchPolicy(), None, FakeCounting), lambda: False, ManualClock(0.0))
    admission.charge(100, refusable=True)
    replica.began()
    watched.look()
    _, shares = watched.read()
    assert (shares[Station.MODEL_SERVERS].working, shares[Station.COMPLETE].held_up) == (1.0, 0.0)
    replica.finished()
    watched.look()
    _, shares = watched.read()
    assert (shares[Station.MODEL_SERVERS].working, shares[Station.COMPLETE].held_up) == (0.0, 1.0)
