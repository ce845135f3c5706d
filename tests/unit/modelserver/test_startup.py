"""How an engine is brought up, and where its profile comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelserver import model_files, startup
from modelserver.engines.choice import Choice
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.profile import store
from modelserver.service.description import describe
from modelserver.settings import EngineSettings, ModelServerSettings, ModelSettings, ProfileSettings, SyntheticSettings
from modelserver.startup import EngineStart, had_profile, keep_profile, profile_owner, sweep_plan
from tests.fakes.step_engine import FakeStepEngine, facts_of


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return model_files.read(model_files.locate("", ""), "r1")


@pytest.fixture
def engine() -> FakeStepEngine:
    engine = FakeStepEngine(facts_of(step_tokens=64, step_queries=64))
    engine.gate.set()
    return engine


def settings_of(folder: Path, **changes: object) -> ModelServerSettings:
    fields: dict[str, object] = {"cache": folder, "budget_s": 0.001, **changes}
    return ModelServerSettings(profile=ProfileSettings.model_validate(fields))


def test_a_measured_profile_is_cached_and_not_measured_again(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    settings = settings_of(tmp_path)
    measured = had_profile(engine, settings, files)
    assert measured is not None
    assert measured.curve.max_tokens == 64
    keep_profile(measured, settings, engine.facts)
    steps = len(engine.steps)
    assert had_profile(engine, settings, files) == measured
    assert len(engine.steps) == steps


def test_a_cache_that_cannot_be_written_is_no_reason_not_to_serve(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    (tmp_path / "file").touch()
    settings = settings_of(tmp_path / "file" / "folder")
    measured = had_profile(engine, settings, files)
    assert measured is not None
    keep_profile(measured, settings, engine.facts)


def test_a_supplied_profile_is_taken_and_a_foreign_one_refused(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    measured = had_profile(engine, settings_of(tmp_path / "cache"), files)
    assert measured is not None
    store.save(measured, tmp_path / "profile.json")
    supplied = settings_of(tmp_path / "other", file=tmp_path / "profile.json")
    assert had_profile(engine, supplied, files) == measured
    foreign = ModelServerSettings(profile=supplied.profile, model=ModelSettings(name="another"))
    with pytest.raises(CannotStart, match="its model is 'all-minilm-l6-v2', not 'another'"):
        had_profile(engine, foreign, files)


def test_without_a_profile_none_is_published(tmp_path: Path, files: ModelFiles, engine: FakeStepEngine) -> None:
    assert had_profile(engine, settings_of(tmp_path, enabled=False), files) is None
    assert engine.steps == []


def test_a_synthetic_engines_profile_is_its_formula(tmp_path: Path, files: ModelFiles) -> None:
    settings = ModelServerSettings(
        engine=EngineSettings(kind="synthetic", step_tokens=64),
        synthetic=SyntheticSettings(fixed_s=0.0, per_token_s=0.001, dimensions=32),
        profile=ProfileSettings(cache=tmp_path),
    )
    start = EngineStart(settings, files, lambda: pytest.fail("there is nothing to fall back from"))
    engine = start.embedding()
    assert engine.facts.dimensions == 32
    assert start.facts == engine.facts
    assert start.profile is not None
    assert start.profile.curve.per_token_s == pytest.approx(0.001)


def test_a_fallback_is_told_and_a_rebuild_measures_nothing_again(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "build", lambda *_: Choice(engine, "it disagrees"))
    told: list[int] = []
    start = EngineStart(settings_of(tmp_path), files, lambda: told.append(1))
    start.embedding()
    first, steps = start.profile, len(engine.steps)
    start.embedding()
    assert told == [1, 1]
    assert start.profile is first
    assert len(engine.steps) == steps + 1, "only the warm-up ran again"


def test_the_sweep_goes_as_far_as_the_device_makes_sense_and_the_step_allows(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert sweep_plan(settings, facts_of(step_tokens=4096)).max_tokens == 1024
    assert sweep_plan(settings, facts_of(step_tokens=1000)).max_tokens == 1000


def test_the_description_carries_the_profile_and_every_size_of_a_matryoshka_model(
    tmp_path: Path, files: ModelFiles, engine: FakeStepEngine
) -> None:
    profile = had_profile(engine, settings_of(tmp_path), files)
    assert profile is not None
    said = describe("m", engine.facts, files, profile, "i1").message
    assert said.profile.saturation_point == profile.curve.saturation_point
    assert [point.step_tokens for point in said.profile.points] == [tokens for tokens, _ in profile.points]
    assert list(said.matryoshka_dimensions) == []
    nested = replace(files, is_matryoshka=True)
    assert list(describe("m", engine.facts, nested, None, "i1").message.matryoshka_dimensions) == [1, 2]
    listed = replace(nested, matryoshka_dimensions=(2,))
    assert list(describe("m", engine.facts, listed, None, "i1").message.matryoshka_dimensions) == [2]


def test_the_owner_of_a_profile_is_all_that_its_times_depend_on(files: ModelFiles, engine: FakeStepEngine) -> None:
    owner = profile_owner(ModelServerSettings(), engine.facts, files)
    assert (owner.model, owner.revision, owner.engine, owner.device) == ("all-minilm-l6-v2", "r1", "synthetic", "none")


def test_a_model_is_served_under_its_own_name_its_folders_or_minilms() -> None:
    assert ModelServerSettings().served_name == "all-minilm-l6-v2"
    assert ModelServerSettings(model=ModelSettings(path="/models/e5-base/")).served_name == "e5-base"
    assert ModelServerSettings(model=ModelSettings(path="owner/e5")).served_name == "e5"
    assert ModelServerSettings(model=ModelSettings(path="/models/e5", name="mine")).served_name == "mine"
