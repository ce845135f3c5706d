"""How an engine is brought up."""

from __future__ import annotations

import pytest
from typing_extensions import override

from modelserver import startup
from modelserver.engines.choice import Choice, EngineWings, uncounted
from modelserver.engines.engine import Measurable, StepThreads, Task
from modelserver.model_files import ModelFiles
from modelserver.scheduler.step_queue import StepQueue
from modelserver.service.description import describe
from modelserver.settings import ModelServerSettings
from modelserver.startup import EngineStart, Profiler
from modelserver.watch import TIMEOUTS_S, PhaseWatchdog
from tests.support.fake_step_engine import FakeStepEngine

WATCH = PhaseWatchdog()
SETTINGS = ModelServerSettings()


class Recorder(Profiler):
    """Keeps the engines that it is to measure, and after how many of their steps."""

    def __init__(self, settings: ModelServerSettings, files: ModelFiles) -> None:
        super().__init__(settings, files)
        self.asked: list[tuple[Measurable, int, StepThreads | None]] = []

    @override
    def built(self, engine: Measurable, threads: StepThreads | None = None) -> None:
        assert isinstance(engine, FakeStepEngine)
        self.asked.append((engine, len(engine.steps), threads))


def test_each_engine_that_is_built_is_warmed_up_and_measured(
    files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [StepThreads(2, lambda _: None), StepThreads(2, lambda _: None)]
    choices = [Choice(engine, "it disagrees", each) for each in threads]
    monkeypatch.setattr(startup, "build", lambda *_: choices.pop(0))
    told: list[int] = []
    recorder = Recorder(SETTINGS, files)
    start = EngineStart(SETTINGS, files, EngineWings(), lambda: told.append(1), uncounted, WATCH, recorder)
    start.batches(Task.EMBED)
    start.batches(Task.EMBED)
    assert told == [1, 1], "each fallback is told"
    assert recorder.asked == [(engine, 1, threads[0]), (engine, 2, threads[1])]


async def test_without_a_wing_nothing_is_measured_and_no_profile_published(
    files: ModelFiles, engine: FakeStepEngine
) -> None:
    profiler, threads = Profiler(SETTINGS, files), StepThreads(2, lambda _: None)
    profiler.built(engine, threads)
    description = describe("m", engine.facts, files, profiler.message, "1")
    await profiler.before_serving(StepQueue(lambda: 0.0), description)
    assert engine.steps == []
    assert threads.threaded_tokens == 0, "each step gets all threads"
    assert not description.message.HasField("profile")


def test_a_rebuild_that_hangs_is_overdue_as_the_first_load_is(
    files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, overdue = 0.0, list[str | None]()
    watch = PhaseWatchdog({**TIMEOUTS_S, "load": 1.0}, lambda: now_s)

    def build(*_: object) -> Choice:
        nonlocal now_s
        now_s += 0.5 if not overdue else 1.5
        overdue.append(watch.overdue())
        return Choice(engine)

    monkeypatch.setattr(startup, "build", build)
    profiler = Profiler(SETTINGS, files)
    start = EngineStart(SETTINGS, files, EngineWings(), lambda: None, uncounted, watch, profiler)
    start.batches(Task.EMBED)
    start.batches(Task.EMBED)
    assert overdue == [None, "load takes longer than 1 s"]
    assert watch.overdue() is None
