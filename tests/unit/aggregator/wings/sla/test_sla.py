"""The SLA controller holds its target under noise and follows a pod that changes."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.scheduler.curve import Curve, Rule
from aggregator.wings.sla.sla import SlaController, SlaPolicy, step_target_s

SEEDS = range(20)
NOISE = 0.10
POLICY = SlaPolicy(min_tokens=64, max_tokens=4096, start_tokens=4096)

A100 = Curve(0.020, 0.0, 0.020 / 600, 600, Rule.HINGE, 8192)
CPU = Curve(0.004, 0.004, 73e-6, 463, Rule.THROUGHPUT, 8192)
HEAVY = Curve(0.020, 0.020, 20e-6, 3600, Rule.THROUGHPUT, 8192)


class Moment(NamedTuple):
    """The replica before one step: its budget, and the noise-free time of a step that fills it."""

    budget: int
    full_step_s: float


class Pod:
    """A model server behind one replica: noisy steps, reported after the next batch was cut already (one is staged)."""

    def __init__(self, curve: Curve, seed: int, *, staged: int = 1) -> None:
        self.curve = curve
        self.slowness = 1.0
        self.noise = random.Random(seed)
        self.reports: deque[tuple[int, float, int]] = deque()
        self.staged = staged

    def run(self, replica: SlaController, steps: int, fill: tuple[float, float] = (0.93, 1.0)) -> Iterator[Moment]:
        for _ in range(steps):
            budget = replica.token_budget
            yield Moment(budget, self.slowness * self.curve.time_s(budget))
            tokens = max(1, int(budget * self.noise.uniform(*fill)))
            duration_s = self.slowness * self.curve.time_s(tokens) * max(0.3, 1.0 + NOISE * self.noise.gauss(0.0, 1.0))
            self.reports.append((tokens, duration_s, budget))
            if len(self.reports) > self.staged:
                replica.observe(*self.reports.popleft())


def warmed_up(pod: Pod, policy: SlaPolicy, target_s: float, steps: int = 100) -> SlaController:
    replica = SlaController(policy, target_s)
    for _ in pod.run(replica, steps):
        pass
    return replica


def steps_to_recover(pod: Pod, replica: SlaController, steps: int = 100) -> int:
    """Steps until a full step's noise-free time lies within D +- 2 epsilon, or the budget is as far as it may go."""
    for count, moment in enumerate(pod.run(replica, steps)):
        if moment.full_step_s == pytest.approx(replica.target_s, rel=0.10):
            return count
    return steps


CASES = [
    (curve, share)
    for curve in (A100, CPU, HEAVY)
    for share in (0.08, 0.25, 0.5, 0.95)
    if curve is not A100 or share > 0.15  # below its knee the A100's time does not depend on the budget
]


@pytest.mark.slow
@pytest.mark.parametrize(("curve", "share"), CASES)
def test_under_noise_a_step_takes_the_target_time_from_the_twentieth_on(curve: Curve, share: float) -> None:
    target_s = curve.time_s(int(share * POLICY.max_tokens))
    inside = total = 0
    for seed in SEEDS:
        replica = SlaController(POLICY, target_s)
        late = list(Pod(curve, seed).run(replica, 200))[20:]
        inside += sum(abs(moment.full_step_s / target_s - 1.0) <= 0.10 for moment in late)
        total += len(late)
    assert inside >= 0.95 * total


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2.0, 0.5], ids=["slows", "quickens"])
@pytest.mark.parametrize(("curve", "share"), [(A100, 0.5), (CPU, 0.15), (CPU, 0.25), (CPU, 0.5)])
def test_thirty_steps_after_a_pods_speed_changed_by_half_the_target_holds(
    curve: Curve, share: float, factor: float
) -> None:
    target_s = curve.time_s(int(share * POLICY.max_tokens))
    for seed in SEEDS:
        pod = Pod(curve, seed)
        replica = warmed_up(pod, POLICY, target_s)
        pod.slowness = factor
        assert steps_to_recover(pod, replica) <= 30


def test_a_target_no_budget_meets_gives_the_floor_a_slack_one_the_ceiling() -> None:
    assert warmed_up(Pod(A100, 0), POLICY, 0.010).token_budget == POLICY.min_tokens
    assert warmed_up(Pod(A100, 0), POLICY, 1.0).token_budget == POLICY.max_tokens


@pytest.mark.slow
def test_from_its_floor_it_finds_the_target_again() -> None:
    target_s = CPU.time_s(2000)
    for seed in SEEDS:
        replica = SlaController(replace(POLICY, start_tokens=POLICY.min_tokens), target_s)
        assert steps_to_recover(Pod(CPU, seed), replica) <= 30


def budgets(replica: SlaController, count: int, *step: Any) -> list[int]:
    """The budget after each of so many steps alike."""
    found: list[int] = []
    for _ in range(count):
        replica.observe(*step)
        found.append(replica.token_budget)
    return found


steps = st.tuples(st.integers(-5, 9000), st.floats(allow_nan=True), st.integers(-5, 9000))


@pytest.mark.slow
@given(st.lists(steps, max_size=60), st.floats(1e-3, 10.0))
def test_the_budget_never_leaves_its_bounds(reports: list[tuple[int, float, int]], target_s: float) -> None:
    replica = SlaController(POLICY, target_s)
    for report in reports:
        replica.observe(*report)
        assert POLICY.min_tokens <= replica.token_budget <= POLICY.max_tokens


@pytest.mark.slow
@given(st.lists(st.floats(0.951, 1.049), min_size=1, max_size=60), st.integers(64, 4096))
def test_inside_the_tolerance_the_budget_stays(times: list[float], start: int) -> None:
    replica = SlaController(replace(POLICY, start_tokens=start), 0.050)
    for time in times:
        replica.observe(start, 0.050 * time, start)
    assert replica.token_budget == start


class Overload:
    """A replica's queue through an overload: 20 % too much for five seconds, then 70 % of what the replica can do."""

    def __init__(self, seed: int) -> None:
        self.pod = Pod(CPU, seed)
        self.replica = SlaController(replace(POLICY, start_tokens=600, max_tokens=600), 0.095)
        self.queue = 0.0

    def run(self, overhead_s: Callable[[float], float]) -> None:
        now_s = 0.0
        while now_s < 20.0:
            self.replica.retarget(step_target_s(0.200, overhead_s(self.queue), CPU.time_s(POLICY.min_tokens)))
            budget = self.replica.token_budget
            tokens = max(1, int(min(budget, self.queue)))
            duration_s = CPU.time_s(tokens) * (1.0 + NOISE * self.pod.noise.uniform(-1.0, 1.0))
            load = 1.2 if 5.0 <= now_s < 10.0 else 0.7
            self.queue = max(0.0, self.queue + load * CPU.throughput(600) * duration_s - tokens)
            self.replica.observe(tokens, duration_s, budget)
            now_s += duration_s


@pytest.mark.slow
def test_after_an_overload_the_queue_drains() -> None:
    for seed in SEEDS:
        overload = Overload(seed)
        overload.run(lambda _: 0.010)
        assert overload.queue < 2 * 600
        assert overload.replica.token_budget == 600


def test_oversized_inputs_that_go_alone_teach_nothing() -> None:
    replica = warmed_up(Pod(CPU, 1), POLICY, CPU.time_s(600))
    before = replica.token_budget
    for _ in range(50):
        replica.observe(5000, CPU.time_s(5000), replica.token_budget)
    assert replica.token_budget == before


@pytest.mark.slow
def test_a_burst_of_long_requests_does_not_poison_it() -> None:
    """Long inputs cost more per token: the budget gives way while they come, and is back thirty steps later."""
    for seed in SEEDS:
        pod = Pod(CPU, seed)
        replica = warmed_up(pod, POLICY, CPU.time_s(1000))
        pod.slowness = 3.0
        for _ in pod.run(replica, 15):
            pass
        assert CPU.time_s(replica.token_budget) < 0.7 * replica.target_s
        pod.slowness = 1.0
        assert steps_to_recover(pod, replica) <= 30


def test_rare_hiccups_at_low_load_do_not_wear_the_budget_down() -> None:
    replica = SlaController(replace(POLICY, start_tokens=600), 0.050)
    for count in range(1000):
        replica.observe(100, 0.500 if count % 10 == 0 else 0.020, 600)
    assert replica.token_budget == 600


def test_it_moves_from_the_fourth_step_and_judges_by_the_present_target() -> None:
    replica = SlaController(replace(POLICY, start_tokens=1000), 0.050)
    assert budgets(replica, 5, 1000, 0.025, 1000) == [1000, 1000, 1000, 2000, 2000]
    replica.retarget(0.025)
    assert budgets(replica, 1, 1000, 0.025, 1000) == [1000]
    assert replica.target_s == 0.025


def test_at_its_floor_means_within_an_eighth_of_the_saturation_point() -> None:
    for budget in (165, 164):
        replica = SlaController(SlaPolicy(64, 4096, 800), 0.010)
        assert not replica.at_floor
        for _ in range(30):
            replica.observe(replica.token_budget, 0.010 * replica.token_budget / budget, replica.token_budget)
        assert (replica.token_budget, replica.at_floor) == (budget, budget <= 64 + 800 // 8)


def test_the_target_is_half_of_what_overhead_leaves_or_the_shortest_step() -> None:
    assert step_target_s(0.200, 0.020, 0.005) == pytest.approx(0.090)
    assert step_target_s(0.100, 0.095, 0.005) == pytest.approx(0.005)
    assert step_target_s(0.100, 0.500, 0.005) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("sla_s", "overhead_s"),
    [(0.0, 0.0), (math.nan, 0.0), (math.inf, 0.0), (0.1, -0.1), (0.1, math.nan), (0.1, math.inf)],
)
def test_times_that_are_none_give_no_target(sla_s: float, overhead_s: float) -> None:
    with pytest.raises(ValueError, match="not times"):
        step_target_s(sla_s, overhead_s, 0.005)


@pytest.mark.parametrize("target_s", [0.0, -1.0, math.nan, math.inf])
def test_a_target_that_is_none_is_refused(target_s: float) -> None:
    with pytest.raises(ValueError, match="not a target"):
        SlaController(POLICY, target_s)
    with pytest.raises(ValueError, match="not a target"):
        SlaController(POLICY, 1.0).retarget(target_s)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"min_tokens": 0}, "out of order"),
        ({"start_tokens": 5000}, "out of order"),
        ({"start_tokens": 63}, "out of order"),
        ({"tolerance": 0.0}, "must lie between 0 and 1"),
        ({"tolerance": 1.0}, "must lie between 0 and 1"),
        ({"fill": 0.0}, "must lie between 0 and 1"),
        ({"fill": 1.5}, "must lie between 0 and 1"),
        ({"window": 3}, "too short"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(POLICY, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"min_tokens": 1, "start_tokens": 1},
        {"start_tokens": 64},
        {"min_tokens": 4096},
        {"fill": 1.0},
        {"fill": 0.01},
        {"tolerance": 0.01},
        {"tolerance": 0.99},
        {"window": 4},
    ],
)
def test_a_policy_may_go_to_the_edge_of_what_makes_sense(settings: dict[str, float]) -> None:
    policy = replace(POLICY, **settings)  # type: ignore[arg-type]
    assert SlaController(policy, 0.5).token_budget == policy.start_tokens


@pytest.mark.parametrize(
    ("tokens", "times_s", "budget"),
    [
        (1000, [0.104] * 4, 1000),  # full steps: within a twentieth of the target the budget stays
        (1000, [0.096] * 4, 1000),
        (1000, [0.106] * 4, math.floor(1000 / 1.06)),
        (1000, [0.094] * 4, math.floor(1000 / 0.94)),
        (800, [0.100] * 4, 1000),  # a filled step is judged by what a budget as full as usual would take
        (500, [0.104] * 4, 1000),  # steps far from full lower it to where they would meet the target
        (500, [0.106] * 4, math.floor(500 / 1.06)),
        (500, [0.200] * 4, 250),
        (1000, [0.200, 0.080, 0.110, 0.090], 1000),  # of four the two in the middle count
        (1000, [0.100, 0.100, 0.100, 0.100, 9.0, 0.001], 1000),
    ],
)
def test_the_middle_of_the_last_steps_moves_a_budget_a_twentieth_off(
    tokens: int, times_s: list[float], budget: int
) -> None:
    replica = SlaController(replace(POLICY, start_tokens=1000), 0.100)
    seen = [budgets(replica, 1, tokens, step_s, 1000)[0] for step_s in times_s]
    assert seen == [1000] * (len(seen) - 1) + [budget]


@pytest.mark.parametrize(("filled", "raised"), [(800, True), (799, False)])
def test_only_steps_four_fifths_full_teach_anything_about_raising(filled: int, *, raised: bool) -> None:
    replica = SlaController(replace(POLICY, start_tokens=1000), 0.100)
    assert (budgets(replica, 4, filled, 0.010, 1000)[-1] > 1000) == raised


@pytest.mark.parametrize(
    "nothing", [(0, 0.1, 1000), (10, 0.1, 0), *((1000, none_s, 1000) for none_s in (0.0, -1.0, math.nan, math.inf))]
)
def test_a_report_that_says_nothing_teaches_nothing(nothing: tuple[int, float, int]) -> None:
    replica = SlaController(replace(POLICY, start_tokens=1000), 0.100)
    assert budgets(replica, 10, *nothing)[-1] == 1000


def test_one_token_in_a_budget_of_one_is_evidence() -> None:
    replica = SlaController(SlaPolicy(1, 100, 1), 0.100)
    assert budgets(replica, 4, 1, 0.001, 1)[-1] == 100


@pytest.mark.parametrize(("tokens", "step_s"), [(64, 0.625), (64, 0.5), (32, 0.625)])
def test_at_the_very_edge_of_the_tolerance_nothing_moves(tokens: int, step_s: float) -> None:
    policy = SlaPolicy(1, 1024, 64, tolerance=0.25)
    replica = SlaController(policy, 0.5 if step_s == 0.625 else 0.5 / 0.75)
    for _ in range(4):
        replica.observe(tokens, step_s, 64)
    assert replica.token_budget == 64
