"""Say whether the simulator's figures are those of the running system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from loadtest.simulate.clock import StepTimes
from loadtest.simulate.load import Steady
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Policy, Scenario, Work
from loadtest.simulate.simulation import simulate

TOLERANCE = 0.15
"""Of the live median of p50s, for the simulator's."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """One live run, in seconds."""

    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """What the simulator takes over from a live run: what it cost besides its steps, and how long those took."""

    work: Work
    step_times: StepTimes


@dataclass(frozen=True, slots=True)
class Row:
    """One load: the live repeats, and the simulator's median of as many runs."""

    share: float
    rate: float
    live: tuple[Repeat, ...]
    p50_s: float
    p99_s: float

    @property
    def live_p50_s(self) -> float:
        """The median of the repeats."""
        return median(repeat.p50_s for repeat in self.live)

    @property
    def p50_off(self) -> float:
        """How far the simulator's p50 is off, as a share of the live one."""
        return self.p50_s / self.live_p50_s - 1.0

    @property
    def p50_holds(self) -> bool:
        """Whether it is within the tolerance."""
        return abs(self.p50_off) <= TOLERANCE

    @property
    def p99_holds(self) -> bool:
        """Whether the simulator's p99 lies within the spread of the live ones."""
        return min(repeat.p99_s for repeat in self.live) <= self.p99_s <= max(repeat.p99_s for repeat in self.live)

    def to_dict(self) -> dict[str, object]:
        """For a JSON file."""
        return {**asdict(self), "p50_off": self.p50_off, "p50_holds": self.p50_holds, "p99_holds": self.p99_holds}


def simulated(profile: str, rate: float, seconds: float, runs: Sequence[Run], delay_s: float) -> list[Outcome]:
    """The same load in virtual time, once for each live run; `delay_s` as in `Costs`."""
    network_s = min(0.0005, delay_s / 4.0)
    rest_s = delay_s - 2.0 * network_s
    scenario = Scenario(
        "validate",
        Steady(rate),
        seconds,
        curve=profile,
        intake_s=rest_s / 2.0,
        network_s=network_s,
        complete_s=rest_s / 2.0,
        warm_up_s=0.1 * seconds,
    )
    policy = Policy(Kind.OURS, sla=False)
    return [
        simulate(replace(scenario, work=run.work, step_times=run.step_times), policy, seed)
        for seed, run in enumerate(runs, start=1)
    ]


def row(share: float, rate: float, live: Sequence[Repeat], outcomes: Sequence[Outcome]) -> Row:
    """Both sides of one load."""
    p50_s, p99_s = median(one.p50_s for one in outcomes), median(one.p99_s for one in outcomes)
    return Row(share, rate, tuple(live), p50_s, p99_s)
