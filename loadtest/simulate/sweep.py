"""Find each policy's best setting for a case, and compare the winners over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from statistics import mean, stdev

from loadtest.simulate.curves import find
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.pool import Pool
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.world import simulate

SWEPT_ON = (100, 101, 102)
"""The seeds that settings are swept on; they are not among those compared."""
_T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 15: 2.14, 20: 2.09, 25: 2.06}
"""Student's t for 95 % intervals, by the number of seeds; between these the next smaller one counts."""
_SHARES = (0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_WAITS_S = (0.0, 0.002, 0.005, 0.010, 0.020)
_WINDOWS_S = (0.002, 0.005, 0.010, 0.015, 0.020, 0.030, 0.040)


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy in one case: its outcomes over seeds."""

    policy: Policy
    outcomes: tuple[Outcome, ...]

    def interval(self, figure: str) -> tuple[float, float]:
        """Mean of a figure over the seeds, and half the width of its 95 % interval."""
        return interval(self._values(figure))

    def beyond(self, other: Compared, figure: str) -> tuple[float, float]:
        """The same of how much the figure is above another's, seed by seed: both had the same arrivals."""
        return interval([own - its for own, its in zip(self._values(figure), other._values(figure), strict=True)])

    @property
    def rank(self) -> tuple[float, float]:
        """What is better ranks lower: first more answers in time (to half a per cent), then a lower p99."""
        return -round(200.0 * mean(self._values("in_time"))), mean(self._values("p99_s"))

    def _values(self, figure: str) -> list[float]:
        return [float(getattr(outcome, figure)) for outcome in self.outcomes]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval; 0 for one value, or where one is infinite."""
    if len(values) < min(_T95) or not all(map(isfinite, values)):
        return mean(values), 0.0  # nothing answered in a run: its latencies are infinite
    student = _T95[max(count for count in _T95 if count <= len(values))]
    return mean(values), student * stdev(values) / len(values) ** 0.5


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
            for size, wait_s, depth, margin_s in product(sizes, _WAITS_S, (1, 2), margins):
                yield Policy(kind, size=size, wait_s=wait_s, depth=depth, margin_s=margin_s)
        case Kind.TIME_WINDOW:
            for wait_s, depth, margin_s in product(_WINDOWS_S, (1, 2), margins):
                yield Policy(kind, wait_s=wait_s, depth=depth, margin_s=margin_s)
        case Kind.SEQUENTIAL:
            for depth in (1, 2, 4):
                yield Policy(kind, depth=depth)
        case Kind.OURS | Kind.SLA_PAPER:
            yield Policy(kind)


def swept(kind: Kind, scenario: Scenario, pool: Pool) -> list[Compared]:
    """Every setting of one kind in a case, the best first."""
    return sorted(compare(scenario, settings(kind, scenario), SWEPT_ON, pool), key=lambda tried: tried.rank)


def best(kind: Kind, scenario: Scenario, pool: Pool) -> Policy:
    """The setting of a kind that does best in a case; what has no settings needs no trial."""
    tried = list(settings(kind, scenario))
    return tried[0] if len(tried) == 1 else swept(kind, scenario, pool)[0].policy


def compare(scenario: Scenario, policies: Iterable[Policy], seeds: Sequence[int], pool: Pool) -> list[Compared]:
    """The policies in a case, over the seeds."""
    runs = [(policy, seed) for policy in policies for seed in seeds]
    outcomes = pool.map(simulate, [scenario] * len(runs), [policy for policy, _ in runs], [seed for _, seed in runs])
    count = len(seeds)
    return [Compared(runs[at][0], tuple(outcomes[at : at + count])) for at in range(0, len(runs), count)]
