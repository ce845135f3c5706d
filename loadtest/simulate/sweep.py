"""Find each policy's best setting for a case, and compare the winners over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from statistics import mean, stdev

from loadtest.simulate.curves import find
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.world import simulate

_T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t for 95 % intervals, by the number of seeds."""
_SHARES = (0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_WAITS_S = (0.0, 0.002, 0.005, 0.010, 0.020)


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy at its best setting in one case: its outcomes over seeds."""

    policy: Policy
    outcomes: tuple[Outcome, ...]

    def interval(self, figure: str) -> tuple[float, float]:
        """Mean of a figure over the seeds, and half the width of its 95 % interval."""
        values = [float(getattr(outcome, figure)) for outcome in self.outcomes]
        if len(values) < min(_T95) or not all(map(isfinite, values)):
            return mean(values), 0.0  # nothing answered in a run: its latencies are infinite
        return mean(values), _T95.get(len(values), 1.96) * stdev(values) / len(values) ** 0.5


def settings(kind: Kind, scenario: Scenario) -> Iterator[Policy]:
    """Every setting of one kind that a sweep tries."""
    curve = find(scenario.curve)
    point = curve.saturation_point
    step_s = curve.time_s(point)
    # Only where a deadline is short enough to be missed does giving up early matter.
    margins = (0.0, step_s, 2.0 * step_s) if scenario.deadline_s <= scenario.slo_s else (0.0,)
    mean_tokens = scenario.lengths.mean()
    sizes = sorted({max(1, round(share * point / mean_tokens)) for share in _SHARES})
    match kind:
        case Kind.STATIC_TOKENS:
            for share, depth, margin_s in product(_SHARES, (1, 2), margins):
                yield Policy(kind, tokens=round(share * point), depth=depth, margin_s=margin_s)
        case Kind.REQUEST_COUNT:
            for size, wait_s, depth, margin_s in product(sizes, _WAITS_S[:4], (1, 2), margins):
                yield Policy(kind, size=size, wait_s=wait_s, depth=depth, margin_s=margin_s)
        case Kind.TIME_WINDOW:
            for wait_s, depth, margin_s in product(_WAITS_S[1:], (1, 2), margins):
                yield Policy(kind, wait_s=wait_s, depth=depth, margin_s=margin_s)
        case Kind.SEQUENTIAL:
            for depth in (1, 2, 4):
                yield Policy(kind, depth=depth)
        case Kind.OURS | Kind.SLA_PAPER:
            yield Policy(kind)


def rank(outcome: Outcome) -> tuple[float, float]:
    """What is better ranks lower: first more answers in time (to half a per cent), then a lower p99."""
    return -round(200.0 * outcome.in_time), outcome.p99_s


def best(kind: Kind, scenario: Scenario, seed: int = 100) -> Policy:
    """The setting that does best on one seed, which is not among those compared."""
    return min(settings(kind, scenario), key=lambda policy: rank(simulate(scenario, policy, seed)))


def compare(scenario: Scenario, seeds: Sequence[int], kinds: Iterable[Kind] = tuple(Kind)) -> list[Compared]:
    """Every kind at its best setting for this case, over the seeds."""
    return [
        Compared(policy, tuple(simulate(scenario, policy, seed) for seed in seeds))
        for policy in (best(kind, scenario) for kind in kinds)
    ]
