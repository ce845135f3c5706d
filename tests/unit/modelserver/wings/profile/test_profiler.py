"""Where the profile of an engine comes from, and what a rebuilt engine keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelserver.all_settings import AllModelServerSettings
from modelserver.engines.engine import IdArray, Step, StepThreads
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.scheduler.step_queue import StepQueue
from modelserver.service.description import describe
from modelserver.settings import ModelServerSettings, ModelSettings
from modelserver.wings.profile import profiler, store
from modelserver.wings.profile.measure import Profile, known
from modelserver.wings.profile.profiler import SaturationProfiler, keep, owner_of, sweep_plan
from modelserver.wings.profile.settings import ProfileSettings
from tests.support.fake_step_engine import FakeStepEngine


def settings_of(folder: Path, **changes: object) -> AllModelServerSettings:
    profile = ProfileSettings.model_validate({"cache": folder, **changes})
    return AllModelServerSettings(profile=profile.model_copy(update={"budget_s": -1.0}))


def profile_of(engine: FakeStepEngine, settings: ModelServerSettings, files: ModelFiles) -> Profile | None:
    """The profile that a start takes."""
    starting = SaturationProfiler(settings, files)
    starting.built(engine)
    return starting.profile


def test_a_measured_profile_is_cached_and_not_measured_again(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    settings = settings_of(tmp_path)
    measured = profile_of(engine, settings, files)
    assert measured is not None
    assert measured.curve.max_tokens == 64
    keep(measured, settings, engine.facts)
    steps = len(engine.steps)
    assert profile_of(engine, settings, files) == measured
    assert len(engine.steps) == steps


def test_a_cache_that_cannot_be_written_is_no_reason_not_to_serve(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    (tmp_path / "file").touch()
    settings = settings_of(tmp_path / "file" / "folder")
    measured = profile_of(engine, settings, files)
    assert measured is not None
    keep(measured, settings, engine.facts)


def test_a_supplied_profile_is_taken_and_a_foreign_one_refused(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    measured = profile_of(engine, settings_of(tmp_path / "cache"), files)
    assert measured is not None
    store.save(measured, tmp_path / "profile.json")
    supplied = settings_of(tmp_path / "other", file=tmp_path / "profile.json")
    assert profile_of(engine, supplied, files) == measured
    foreign = AllModelServerSettings(profile=supplied.profile, model=ModelSettings(name="another"))
    with pytest.raises(CannotStart, match="its model is 'all-minilm-l6-v2', not 'another'"):
        profile_of(engine, foreign, files)


def test_without_a_profile_none_is_published(tmp_path: Path, files: ModelFiles, engine: FakeStepEngine) -> None:
    assert profile_of(engine, settings_of(tmp_path, enabled=False), files) is None
    assert engine.steps == []


def test_without_a_group_of_settings_none_is_published(files: ModelFiles, engine: FakeStepEngine) -> None:
    assert profile_of(engine, ModelServerSettings(), files) is None
    assert engine.steps == []


class Threads:
    """A start on two threads, whose `threaded_tokens` are measured as 64."""

    def __init__(self, settings: AllModelServerSettings, files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured = 0
        self.threads = StepThreads(2, lambda _: None)
        self.starting = SaturationProfiler(settings, files)
        monkeypatch.setattr(profiler, "measure_threads", self._measure)

    def _measure(self, *_: object) -> int:
        self.measured += 1
        return 64

    async def serve(self, engine: FakeStepEngine) -> int:
        """The `threaded_tokens` that it serves with."""
        self.starting.built(engine, self.threads)
        description = describe("m", engine.facts, self.starting.files, self.starting.message, "1")
        await self.starting.before_serving(StepQueue(lambda: 0.0), description)
        return self.threads.threaded_tokens


class Watched:
    """An engine that notes the `threaded_tokens` with which its steps are prepared."""

    def __init__(self, engine: FakeStepEngine, threads: StepThreads) -> None:
        self.facts = engine.facts
        self.threaded_tokens = set[int]()
        self._engine, self._threads = engine, threads

    def prepare(self, token_ids: IdArray, lengths: IdArray) -> Step:
        self.threaded_tokens.add(self._threads.threaded_tokens)
        return self._engine.prepare(token_ids, lengths)


def known_profile(settings: AllModelServerSettings, engine: FakeStepEngine, files: ModelFiles) -> Profile:
    """A whole profile of this engine, but for its threads."""
    return known(lambda tokens: 0.01 + 0.001 * tokens, owner_of(settings, engine.facts, files), 64)


async def test_a_cached_profile_without_threads_gets_them_once(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    earlier = known_profile(settings, engine, files)
    keep(earlier, settings, engine.facts)
    first = Threads(settings, files, monkeypatch)
    assert (await first.serve(engine), first.measured) == (64, 1)
    assert store.cached(tmp_path, earlier.owner, sweep_plan(settings, engine.facts)) == replace(
        earlier, threaded_tokens=64
    )
    second = Threads(settings, files, monkeypatch)
    assert (await second.serve(engine), second.measured) == (64, 0)
    assert engine.steps == []


@pytest.mark.parametrize("told", [0, 33, None])
async def test_threads_are_measured_unless_the_supplied_profile_tells_them(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch, told: int | None
) -> None:
    settings = settings_of(tmp_path / "other", file=tmp_path / "profile.json")
    store.save(replace(known_profile(settings, engine, files), threaded_tokens=told), tmp_path / "profile.json")
    start = Threads(settings, files, monkeypatch)
    assert await start.serve(engine) == (64 if told is None else told)
    assert start.measured == (told is None)
    assert not (tmp_path / "other").exists()


def test_step_times_are_measured_with_the_threads_that_serve(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Threads(settings_of(tmp_path), files, monkeypatch)
    watched = Watched(engine, start.threads)
    start.starting.built(watched, start.threads)
    assert watched.threaded_tokens == {64}


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
