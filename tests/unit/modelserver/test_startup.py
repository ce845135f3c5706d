"""How an engine is brought up, and where its profile comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelserver import model_files, startup
from modelserver.engines.choice import Choice, EngineWings, uncounted
from modelserver.engines.engine import StepThreads, Task
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.profile import store
from modelserver.settings import (
    ModelServerSettings,
    ModelSettings,
    ProfileSettings,
)
from modelserver.startup import EngineStart, keep_profile, load_profile
from modelserver.watch import TIMEOUTS_S, PhaseWatchdog
from tests.support.fake_step_engine import FakeStepEngine, facts_of

WATCH = PhaseWatchdog()


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return model_files.read(model_files.locate("", ""), "r1")


@pytest.fixture
def engine() -> FakeStepEngine:
    engine = FakeStepEngine(facts_of(step_tokens=64, step_queries=64))
    engine.gate.set()
    return engine


def settings_of(folder: Path, **changes: object) -> ModelServerSettings:
    profile = ProfileSettings.model_validate({"cache": folder, **changes})
    return ModelServerSettings(profile=profile.model_copy(update={"budget_s": -1.0}))


def test_a_measured_profile_is_cached_and_not_measured_again(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    settings = settings_of(tmp_path)
    measured = load_profile(engine, settings, files)
    assert measured is not None
    assert measured.curve.max_tokens == 64
    keep_profile(measured, settings, engine.facts)
    steps = len(engine.steps)
    assert load_profile(engine, settings, files) == measured
    assert len(engine.steps) == steps


def test_a_cache_that_cannot_be_written_is_no_reason_not_to_serve(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    (tmp_path / "file").touch()
    settings = settings_of(tmp_path / "file" / "folder")
    measured = load_profile(engine, settings, files)
    assert measured is not None
    keep_profile(measured, settings, engine.facts)


def test_a_supplied_profile_is_taken_and_a_foreign_one_refused(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    measured = load_profile(engine, settings_of(tmp_path / "cache"), files)
    assert measured is not None
    store.save(measured, tmp_path / "profile.json")
    supplied = settings_of(tmp_path / "other", file=tmp_path / "profile.json")
    assert load_profile(engine, supplied, files) == measured
    foreign = ModelServerSettings(profile=supplied.profile, model=ModelSettings(name="another"))
    with pytest.raises(CannotStart, match="its model is 'all-minilm-l6-v2', not 'another'"):
        load_profile(engine, foreign, files)


def test_without_a_profile_none_is_published(tmp_path: Path, files: ModelFiles, engine: FakeStepEngine) -> None:
    assert load_profile(engine, settings_of(tmp_path, enabled=False), files) is None
    assert engine.steps == []


def test_a_fallback_is_told_and_a_rebuild_measures_nothing_again(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = [StepThreads(2, lambda _: None), StepThreads(2, lambda _: None)]
    choices = [Choice(engine, "it disagrees", threads) for threads in built]
    monkeypatch.setattr(startup, "build", lambda *_: choices.pop(0))
    bounds = [64]
    monkeypatch.setattr(startup, "measure_threads", lambda *_: bounds.pop())
    told: list[int] = []
    start = EngineStart(settings_of(tmp_path), files, EngineWings(), lambda: told.append(1), uncounted, WATCH)
    start.batches(Task.EMBED)
    first, steps = start.profile, len(engine.steps)
    start.batches(Task.EMBED)
    assert told == [1, 1]
    assert start.profile is first
    assert len(engine.steps) == steps + 1, "only the warm-up ran again"
    assert [threads.threaded_tokens for threads in built] == [64, 64]


def test_a_rebuild_that_hangs_is_overdue_as_the_first_load_is(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, overdue = 0.0, list[str | None]()
    watch = PhaseWatchdog({**TIMEOUTS_S, "load": 1.0}, lambda: now_s)

    def build(*_: object) -> Choice:
        nonlocal now_s
        now_s += 0.5 if not overdue else 1.5
        overdue.append(watch.overdue())
        return Choice(engine)

    monkeypatch.setattr(startup, "build", build)
    start = EngineStart(settings_of(tmp_path), files, EngineWings(), lambda: None, uncounted, watch)
    start.batches(Task.EMBED)
    start.batches(Task.EMBED)
    assert overdue == [None, "load takes longer than 1 s"]
    assert watch.overdue() is None
