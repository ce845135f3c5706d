"""`loadtest sweep`: find each policy's best setting for a case, compare the winners over seeds, and keep both."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import mean, stdev

from loadtest.options import fail, positive
from loadtest.screen import bars, plain_table, wide
from loadtest.simulate import cases
from loadtest.simulate.clock import find
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.simulation import Pool, simulate

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


_WIDTH = 170
COLUMNS = (
    "case", "policy", "setting", "seeds", "in time %", "±", "in time/s", "±", "p50 ms", "±", "p99 ms", "±", "chosen",
)  # fmt: skip
_FIGURES = (("in_time", 100.0, 2), ("goodput", 1.0, 1), ("p50_s", 1e3, 2), ("p99_s", 1e3, 2))
"""What the columns hold: the outcome's figure, times what, to how many digits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", choices=cases.NAMES, nargs="+", default=list(cases.NAMES), metavar="CASE")
    parser.add_argument(
        "--policy", choices=[kind.value for kind in Kind], nargs="+", default=[kind.value for kind in Kind],
        metavar="POLICY", help=f"(all): {', '.join(kind.value for kind in Kind)}",
    )  # fmt: skip
    parser.add_argument("--seconds", type=positive, default=10.0, help="of each run, in virtual time (%(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=25, metavar="N", help="to compare the winners on: 1 to N (%(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="every setting tried, and the winners")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, or 2 when it could not be done."""
    seeds = range(1, options.seeds + 1)
    rows: list[tuple[str, ...]] = []
    titles = ("in time/s", "p50 ms", "p99 ms", "beyond ours: in time/s", "p50 ms", "p99 ms")
    shown = plain_table("case", "policy", *titles, names=2)
    with bars(transient=True) as progress:
        bar = progress.add_task("", total=None)
        with Pool(noted=lambda done, asked: progress.update(bar, completed=done, total=asked)) as pool:
            for name in options.case:
                progress.update(bar, description=name)
                scenario = cases.case(name, seconds=options.seconds)
                tried = [swept(kind, scenario, pool) for kind in map(Kind, options.policy)]
                found = compare(scenario, [best.policy for best, *_ in tried], seeds, pool)
                rows += [row(name, one, SWEPT_ON, chosen=one is best) for best, *rest in tried for one in (best, *rest)]
                rows += [row(name, one, seeds, chosen=True) for one in found]
                for one in found:
                    shown.add_row(name, one.policy.label, *_shown(one, found))
    try:
        if options.out:
            with options.out.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(COLUMNS)
                writer.writerows(rows)
    except OSError as error:
        return fail(options.prog, error)
    wide(_WIDTH).print(shown)
    return 0


def row(case: str, one: Compared, seeds: Sequence[int], *, chosen: bool) -> tuple[str, ...]:
    """One setting's line of the file: means over the seeds, with 95 % intervals where there are more than a few."""
    cells: list[str] = []
    for name, factor, digits in _FIGURES:
        middle, half = one.interval(name)
        cells += [f"{factor * middle:.{digits}f}", f"{factor * half:.{digits}f}" if len(seeds) > len(SWEPT_ON) else ""]
    over = f"{seeds[0]} to {seeds[-1]}"
    return case, one.policy.kind.value, one.policy.label, over, *cells, "yes" if chosen else "no"


def _shown(one: Compared, found: Sequence[Compared]) -> list[str]:
    figures = _FIGURES[1:]
    cells = [_plus_minus(one.interval(name), factor) for name, factor, _ in figures]
    ours = next((other for other in found if other.policy.kind is Kind.OURS), None)
    if ours is None or one is ours:
        return cells
    return cells + [_plus_minus(one.beyond(ours, name), factor) for name, factor, _ in figures]


def _plus_minus(value: tuple[float, float], factor: float) -> str:
    return f"{factor * value[0]:.1f} ± {factor * value[1]:.1f}"
