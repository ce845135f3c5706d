"""The sweep behind the saturation profile, in virtual time, and the files it is kept in."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from modelserver.engines.engine import EngineFacts, IdArray, Matrix
from modelserver.errors import CannotStart
from modelserver.wings.profile import store
from modelserver.wings.profile.measure import (
    Profile,
    ProfileOwner,
    SweepPlan,
    backlog_tokens,
    batch_sizes,
    known,
    measure,
    production_mix,
    summary,
    sweep,
)
from modelserver.wings.profile.profiler import described
from modelserver.wings.profile.saturation import Rule, sweep_tokens
from tests.support.fake_step_engine import facts_of

OWNER = ProfileOwner("m", "r1", "float32", "direct", "0.32", "cpu")
PLAN = SweepPlan(max_tokens=1024, budget_s=1e9, runs=10, min_runs=3)
FLOOR_S, FIXED_S, PER_TOKEN_S = 0.010, 0.004, 0.00002


def curve_s(tokens: int) -> float:
    return max(FLOOR_S, FIXED_S + PER_TOKEN_S * tokens)


@dataclass
class TimedEngine:
    """Winds a clock by the time a step takes, plus noise; keeps what it was given."""

    facts: EngineFacts = field(default_factory=lambda: facts_of(2048, 2048, 20))
    now_s: float = 0.0
    noise: float = 0.0
    totals: list[int] = field(default_factory=list[int])
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def clock(self) -> float:
        return self.now_s

    def prepare(self, token_ids: IdArray, lengths: IdArray) -> TimedStep:
        assert token_ids.size == lengths.sum()
        return TimedStep(self, token_ids.size)

    def recover(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class TimedStep:
    engine: TimedEngine
    tokens: int

    def execute(self) -> Matrix:
        engine = self.engine
        engine.totals.append(self.tokens)
        engine.now_s += curve_s(self.tokens) * float(engine.rng.lognormal(0, engine.noise))
        return np.zeros((1, 2), np.float32)


def test_the_measured_curve_finds_the_hinge_through_noise() -> None:
    engine = TimedEngine(noise=0.1)
    profile = measure(engine, OWNER, PLAN, engine.clock)
    assert profile.curve.rule is Rule.HINGE
    assert profile.curve.saturation_point == pytest.approx(300, rel=0.15)
    assert (profile.curve.max_tokens, profile.runs, profile.owner) == (1024, 10, OWNER)
    assert [tokens for tokens, _ in profile.points] == list(sweep_tokens(1024, 8))


def test_each_round_takes_every_total_once_in_an_order_of_its_own() -> None:
    engine = TimedEngine()
    totals = (8, 16, 32, 64)
    times = sweep(engine, totals, PLAN, engine.clock)
    rounds = [engine.totals[start : start + 4] for start in range(0, len(engine.totals), 4)]
    assert all(sorted(one) == list(totals) for one in rounds)
    assert len(rounds) == PLAN.runs + 1, "one more to warm up"
    assert len(set(map(tuple, rounds))) > 3
    assert all(len(measured) == PLAN.runs for measured in times.values())
    assert times[64] == pytest.approx([curve_s(64)] * PLAN.runs)


def test_a_sweep_may_spend_all_of_its_time() -> None:
    engine = TimedEngine()
    times = sweep(engine, (8,), replace(PLAN, budget_s=sum([FLOOR_S] * 5)), engine.clock)
    assert len(times[8]) == 5


def test_the_time_of_a_sweep_counts_from_its_start() -> None:
    engine = TimedEngine(now_s=1000.0)
    times = sweep(engine, (8, 16, 32, 64), replace(PLAN, budget_s=900.0), engine.clock)
    assert {len(measured) for measured in times.values()} == {PLAN.runs}


def test_one_stray_step_in_three_moves_no_point() -> None:
    """The median, not the mean: a pause of the machine may be a hundred steps long."""

    class StumblingStep(TimedStep):
        @override
        def execute(self) -> Matrix:
            if self.engine.totals.count(self.tokens) % 3 == 1:
                self.engine.now_s += 1.0
            return super().execute()

    class Stumbling(TimedEngine):
        @override
        def prepare(self, token_ids: IdArray, lengths: IdArray) -> TimedStep:
            return StumblingStep(self, token_ids.size)

    engine = Stumbling()
    measured = measure(engine, OWNER, replace(PLAN, runs=15), engine.clock)
    assert dict(measured.points) == pytest.approx({tokens: curve_s(tokens) for tokens, _ in measured.points})


def test_a_total_too_small_to_fit_is_refused() -> None:
    with pytest.raises(CannotStart, match=r"engine\.step_tokens"):
        measure(TimedEngine(), OWNER, replace(PLAN, max_tokens=10))
    with pytest.raises(CannotStart, match=r"engine\.step_tokens"):
        known(lambda tokens: 1e-3 * tokens, OWNER, 10)


@pytest.mark.parametrize("total", [1, 8, 17, 100, 2048, 20_000])
def test_queries_of_production_length_and_whole_vocabulary_sum_to_total(total: int) -> None:
    facts = facts_of(2048, 2048, 12)
    token_ids, lengths = production_mix(total, facts, np.random.default_rng(2))
    assert lengths.sum() == token_ids.size == total
    assert 1 <= lengths.min() <= lengths.max() <= 12
    assert token_ids.max() < facts.vocabulary_size
    assert total < 20_000 or (token_ids.min(), token_ids.max()) == (0, facts.vocabulary_size - 1)


def test_a_formula_needs_no_run_and_may_say_that_no_step_takes_any_time() -> None:
    profile = known(curve_s, OWNER, 1024)
    assert profile.runs == 0
    assert profile.curve.saturation_point == pytest.approx(300, abs=2)
    assert known(lambda _: 0.0, OWNER, 1024).curve.rule is Rule.FLAT


@pytest.fixture
def profile() -> Profile:
    return known(curve_s, OWNER, 1024)


def test_a_profile_comes_back_as_it_was_kept(profile: Profile, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "deeper" / "profile.json"
    store.save(profile, file)
    assert store.load(file, OWNER) == profile
    assert [kept.name for kept in file.parent.iterdir()] == ["profile.json"]


def test_a_profile_keeps_the_sizes_that_the_engine_has_graphs_for(tmp_path: Path) -> None:
    engine = TimedEngine()
    engine.facts = replace(engine.facts, capture_sizes=(8, 64))
    measured = measure(engine, OWNER, PLAN, engine.clock)
    assert measured.curve.time_s(9) == measured.curve.time_s(64)
    store.save(measured, tmp_path / "profile.json")
    assert store.load(tmp_path / "profile.json", OWNER) == measured


def test_graphs_are_measured_at_their_sizes_and_just_above_them(tmp_path: Path) -> None:
    engine = TimedEngine()
    sizes = (64, 128, 192, 256, 512)
    engine.facts = replace(engine.facts, capture_sizes=sizes)
    measured = measure(engine, OWNER, PLAN, engine.clock)
    assert [tokens for tokens, _ in measured.points] == [*sizes, 513, 768, 1024]
    assert measured.curve.eager_s == 0.0, "this engine's time does not jump"
    jumping = replace(measured, curve=replace(measured.curve, eager_s=0.5))
    store.save(jumping, tmp_path / "profile.json")
    assert store.load(tmp_path / "profile.json", OWNER).curve.time_s(513) == 0.5


@pytest.mark.parametrize("threaded_tokens", [None, 0, 65])
def test_a_profile_keeps_the_size_that_is_worth_all_threads(
    profile: Profile, tmp_path: Path, threaded_tokens: int | None
) -> None:
    kept = replace(profile, threaded_tokens=threaded_tokens)
    store.save(kept, tmp_path / "profile.json")
    assert store.load(tmp_path / "profile.json", OWNER) == kept
    assert summary(kept).get("threaded_tokens") == threaded_tokens


def test_a_profile_may_begin_at_one_token_and_pay_from_there(profile: Profile, tmp_path: Path) -> None:
    smallest = replace(profile, curve=replace(profile.curve, saturation_point=1), points=((1, 0.5), *profile.points))
    store.save(smallest, tmp_path / "profile.json")
    assert store.load(tmp_path / "profile.json", OWNER) == smallest


@pytest.mark.parametrize(
    "name", ["model", "revision", "dtype", "engine", "engine_version", "device", "options", "graphs"]
)
def test_a_profile_of_something_else_is_refused_and_says_what_differs(
    profile: Profile, tmp_path: Path, name: str
) -> None:
    store.save(profile, tmp_path / "profile.json")
    with pytest.raises(CannotStart, match=f"belongs to something else: its {name} is '.*', not 'other'"):
        store.load(tmp_path / "profile.json", replace(OWNER, **{name: "other"}))


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1}', '{"format": 2}', "[1]", "[" * 100_000])
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "profile.json").write_text(content, encoding="utf-8")
    with pytest.raises(CannotStart, match="cannot be read"):
        store.load(tmp_path / "profile.json", OWNER)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("curve.saturation_point", 0),
        ("curve.floor_s", math.nan),
        ("curve.fixed_s", -1),
        ("curve.per_token_s", None),
        ("curve.saturation_point", 2**32),
        ("curve.max_tokens", -1),
        ("curve.backlog_tokens", 2**32),
        ("curve.capture_sizes", [-8]),
        ("runs", -1),
        ("points", [[0, 1.0]]),
        ("points", [[2**32, 1.0]]),
        ("points", [[8, 0.0]]),
        ("threaded_tokens", -1),
        ("threaded_tokens", math.inf),
        ("threaded_tokens", []),
    ],
)
def test_figures_that_no_step_could_have_are_refused(
    profile: Profile, tmp_path: Path, part: str, value: object
) -> None:
    store.save(profile, tmp_path / "profile.json")
    content: dict[str, Any] = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))
    *group, name = part.split(".")
    (content[group[0]] if group else content)[name] = value
    (tmp_path / "profile.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CannotStart, match="cannot be read"):
        store.load(tmp_path / "profile.json", OWNER)


def test_the_cache_knows_each_owner_and_each_total_apart(profile: Profile, tmp_path: Path) -> None:
    store.save(profile, store.cache_file(tmp_path, OWNER, PLAN))
    assert store.cached(tmp_path, OWNER, PLAN) == profile
    assert store.cached(tmp_path, replace(OWNER, device="another"), PLAN) is None
    assert store.cached(tmp_path, OWNER, replace(PLAN, max_tokens=2048)) is None


def test_a_release_finds_what_an_earlier_one_kept(tmp_path: Path) -> None:
    assert store.cache_file(tmp_path, OWNER, PLAN) == tmp_path / "606b970f069dfb99233bfa395100c31b.json"


def test_a_spoilt_cache_is_measured_anew(profile: Profile, tmp_path: Path) -> None:
    file = store.cache_file(tmp_path, OWNER, PLAN)
    store.save(profile, file)
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["curve"]["rule"]
    file.write_text(json.dumps(content), encoding="utf-8")
    assert store.cached(tmp_path, OWNER, PLAN) is None


def test_a_backlog_gains_until_a_hundredth_is_left_but_not_past_a_hinge() -> None:
    sizes = batch_sizes(300, 4096)
    assert (len(sizes), sizes[0], sizes[-1]) == (6, 300, 4096)
    found = backlog_tokens([(size, 0.006 + 33e-6 * size) for size in sizes])
    best = 4096 / (0.006 + 33e-6 * 4096)
    assert found / (0.006 + 33e-6 * found) == pytest.approx(0.99 * best, rel=0.001)
    assert backlog_tokens([(size, 0.020 / 600 * size) for size in batch_sizes(600, 16384)]) == 600
    assert batch_sizes(5000, 4096) == (4096,)
    assert backlog_tokens([(4096, 0.1)]) == 4096


def test_the_published_profile_names_its_rule_and_how_far_was_measured() -> None:
    """Without them a saturation point means nothing to who reads it."""
    for max_tokens in (512, 1024):
        measured = known(curve_s, OWNER, max_tokens)
        told = described(measured)
        assert (told.rule, told.max_tokens) == ("hinge", max_tokens)
        assert told.saturation_point == measured.curve.saturation_point
        assert (told.floor_s, told.fixed_s) == (measured.curve.floor_s, measured.curve.fixed_s)
        assert told.per_token_s == measured.curve.per_token_s
        assert [(point.step_tokens, point.step_duration_s) for point in told.points] == list(measured.points)
        assert told.measured_at == measured.measured_at
