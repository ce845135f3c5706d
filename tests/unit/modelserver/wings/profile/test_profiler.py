"""Where the profile of an engine comes from, and what a rebuilt engine keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelserver.all_settings import AllModelServerSettings
from modelserver.engines.engine import StepThreads
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.scheduler.step_queue import StepQueue
from modelserver.service.description import describe
from modelserver.settings import ModelServerSettings, ModelSettings
from modelserver.wings.profile import profiler, store
from modelserver.wings.profile.measure import known
from modelserver.wings.profile.profiler import SaturationProfiler, keep, load, owner_of
from modelserver.wings.profile.settings import ProfileSettings
from tests.support.fake_step_engine import FakeStepEngine


def settings_of(folder: Path, **changes: object) -> AllModelServerSettings:
    profile = ProfileSettings.model_validate({"cache": folder, **changes})
    return AllModelServerSettings(profile=profile.model_copy(update={"budget_s": -1.0}))


def test_a_measured_profile_is_cached_and_not_measured_again(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    settings = settings_of(tmp_path)
    measured = load(engine, settings, files)
    assert measured is not None
    assert measured.curve.max_tokens == 64
    keep(measured, settings, engine.facts)
    steps = len(engine.steps)
    assert load(engine, settings, files) == measured
    assert len(engine.steps) == steps


def test_a_cache_that_cannot_be_written_is_no_reason_not_to_serve(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    (tmp_path / "file").touch()
    settings = settings_of(tmp_path / "file" / "folder")
    measured = load(engine, settings, files)
    assert measured is not None
    keep(measured, settings, engine.facts)


def test_a_supplied_profile_is_taken_and_a_foreign_one_refused(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    measured = load(engine, settings_of(tmp_path / "cache"), files)
    assert measured is not None
    store.save(measured, tmp_path / "profile.json")
    supplied = settings_of(tmp_path / "other", file=tmp_path / "profile.json")
    assert load(engine, supplied, files) == measured
    foreign = AllModelServerSettings(profile=supplied.profile, model=ModelSettings(name="another"))
    with pytest.raises(CannotStart, match="its model is 'all-minilm-l6-v2', not 'another'"):
        load(engine, foreign, files)


def test_without_a_profile_none_is_published(tmp_path: Path, files: ModelFiles, engine: FakeStepEngine) -> None:
    assert load(engine, settings_of(tmp_path, enabled=False), files) is None
    assert engine.steps == []


def test_without_a_group_of_settings_none_is_published(files: ModelFiles, engine: FakeStepEngine) -> None:
    assert load(engine, ModelServerSettings(), files) is None
    assert engine.steps == []


def test_an_engine_that_is_built_again_is_not_measured_again(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = [64]
    monkeypatch.setattr(profiler, "measure_threads", lambda *_: bounds.pop())
    measuring = SaturationProfiler(settings_of(tmp_path), files)
    built = [StepThreads(2, lambda _: None), StepThreads(2, lambda _: None)]
    measuring.built(engine, built[0])
    first, steps = measuring.profile, len(engine.steps)
    measuring.built(engine, built[1])
    assert measuring.profile is first
    assert len(engine.steps) == steps
    assert [threads.threaded_tokens for threads in built] == [64, 64]


async def test_a_supplied_profile_is_served_as_it_is(tmp_path: Path, files: ModelFiles, engine: FakeStepEngine) -> None:
    settings = settings_of(tmp_path / "other", file=tmp_path / "profile.json")
    measured = known(lambda tokens: 0.001 * tokens, owner_of(settings, engine.facts, files), 64)
    measured = replace(measured, curve=replace(measured.curve, backlog_tokens=0))
    store.save(measured, tmp_path / "profile.json")
    measuring = SaturationProfiler(settings, files)
    measuring.built(engine)
    description = describe("m", engine.facts, files, measuring.message, "1")
    await measuring.before_serving(StepQueue(lambda: 0.0), description)
    assert measuring.profile == measured, "its backlog_tokens, 0, are not measured here"
    assert not (tmp_path / "other").exists()
