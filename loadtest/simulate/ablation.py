"""`loadtest ablate`: run every case with and without each of the core's mechanisms, and say what each gains."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from math import inf
from pathlib import Path
from statistics import mean

from rich.table import Table

from loadtest.options import fail
from loadtest.screen import bars, plain_table, wide
from loadtest.simulate import cases
from loadtest.simulate.clock import find
from loadtest.simulate.core_aggregator import Mechanism
from loadtest.simulate.generation.chats import CHATS, Chats, Chatted, converse
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.simulation import Pool, simulate
from loadtest.simulate.sweep import interval

WORTH_WHILE = 0.05
"""What a mechanism must gain in some case: this share of p99, or of the answers in time a second."""
MANY_SEEDS, FEW_SEEDS = 25, 5
_CPU = "minilm-cpu"
_ENOUGH_SERVERS = 32
"""Up to this many, all are used with and without subsets."""
_POOLS = ((8, 1, 0.3), (8, 2, 0.3), (8, 2, 0.6), (8, 8, 0.8))
_LARGE_POOLS = ((40, 4, 0.8), (100, 1, 0.8), (100, 4, 0.8), (100, 16, 0.8), (100, 4, 0.3))
_SEVERAL = (Mechanism.PACING, Mechanism.HALF_BATCHES, Mechanism.SKIPPING)
_REPEATED, _POISONED = (0.8, 1.2), ((1, 0.6), (4, 0.6))
_LARGE_POOL_S, _LARGEST_POOL_S = 2.0, 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """What is run, on the seeds 1 to `seeds`, with and without each of the `mechanisms`."""

    scenario: Scenario | Chats
    seeds: int
    mechanisms: tuple[Mechanism, ...] = tuple(Mechanism)

    def bears_on(self, mechanism: Mechanism) -> bool:
        """Whether the mechanism is asked about, and can change anything."""
        return mechanism in self.mechanisms and bears_on(mechanism, self.scenario)


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation's figures: seconds, answers a second, those in time a second, the share of arrivals in time.

    Of chats the seconds are those to the first tokens.
    """

    case: str
    without: str
    seed: int
    p50_s: float
    p99_s: float
    throughput: float
    goodput: float
    in_time: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One mechanism in one case: the runs with it and those without, seed by seed."""

    case: str
    mechanism: Mechanism
    on: tuple[Run, ...]
    off: tuple[Run, ...]

    @property
    def p99_gain(self) -> tuple[float, float]:
        """Which share of p99 it saves, and half the width of the 95 % interval; negative where it costs."""
        return interval([1.0 - on.p99_s / off.p99_s for on, off in zip(self.on, self.off, strict=True)])

    @property
    def goodput_gain(self) -> tuple[float, float]:
        """Which share of the answers in time a second it adds, and half the width of the 95 % interval.

        Without it there may be none in time: then it is compared with one a second.
        """
        return interval([on.goodput / max(off.goodput, 1.0) - 1.0 for on, off in zip(self.on, self.off, strict=True)])

    @property
    def p50_gain(self) -> tuple[float, float]:
        """The same of p50."""
        return interval([1.0 - on.p50_s / off.p50_s for on, off in zip(self.on, self.off, strict=True)])

    @property
    def pays(self) -> bool:
        """Whether one of the gains is worth while, and beyond its interval."""
        return any(gain >= WORTH_WHILE and gain > half for gain, half in self._gains)

    @property
    def costs(self) -> bool:
        """Whether its absence would be worth while."""
        return any(gain <= -WORTH_WHILE and -gain > half for gain, half in self._gains)

    @property
    def _gains(self) -> tuple[tuple[float, float], ...]:
        """Of chats also that of p50: a user waits for a first token again and again."""
        gains = self.p99_gain, self.goodput_gain
        return (*gains, self.p50_gain) if self.mechanism in _OF_CHATS else gains


_GRAPHS = ("steady-high", "overload", "backlog")
_NAMES = (*cases.NAMES, *cases.BACKLOGS)


def all_cases() -> dict[str, Case]:
    """Every case by name; slow ones on few seeds, the largest pools only for the mechanism about them."""
    scenarios = [cases.case(name, seconds=10.0) for name in _NAMES]
    scenarios += [replace(cases.case(name, curve=_CPU, seconds=60.0), name=f"{name}-cpu") for name in _NAMES]
    scenarios += [replace(cases.case(name, curve="a100-graphs"), name=f"{name}-graphs") for name in _GRAPHS]
    scenarios += [cases.pool(2, 2, 0.8), cases.backlog_under_overload()]
    found = [Case(scenario, MANY_SEEDS) for scenario in scenarios]
    found += [Case(cases.pool(*pool), FEW_SEEDS) for pool in _POOLS]
    found += [Case(cases.pool(32, 4, 0.8, _LARGE_POOL_S), FEW_SEEDS, _SEVERAL)]
    found += [Case(cases.pool(*pool, _LARGEST_POOL_S), FEW_SEEDS, (Mechanism.SUBSETS,)) for pool in _LARGE_POOLS]
    found += [Case(cases.repeated(share), FEW_SEEDS, (Mechanism.COALESCING,)) for share in _REPEATED]
    found += [Case(cases.poisoned(*pool), FEW_SEEDS, (Mechanism.HALVING,)) for pool in _POISONED]
    found += [Case(chats, FEW_SEEDS) for chats in CHATS]
    found += [Case(scenario, FEW_SEEDS) for scenario in (cases.trace_hour(), cases.synthetic_day())]
    return {case.scenario.name: case for case in found}


_NEEDS: dict[Mechanism, Callable[[Scenario], bool]] = {
    Mechanism.SUBSETS: lambda scenario: scenario.pods > _ENOUGH_SERVERS,
    Mechanism.PACING: lambda scenario: scenario.pods > 1 or scenario.autoscale is not None,
    Mechanism.SKIPPING: lambda scenario: scenario.pods > 1 or scenario.autoscale is not None,
    Mechanism.HALF_BATCHES: lambda scenario: scenario.aggregators > 1,
    Mechanism.LARGE_STEPS: lambda scenario: scenario.backlog > 0,
    Mechanism.CAPTURE_SIZES: lambda scenario: bool(find(scenario.curve).capture_sizes),
    Mechanism.COALESCING: lambda scenario: scenario.texts > 0,
    Mechanism.HALVING: lambda scenario: scenario.poison > 0.0,
}
"""What a scenario must have for a mechanism to change anything; the others bear on every one."""
_OF_CHATS = {Mechanism.PREFIX_AFFINITY, Mechanism.FIRST_TOKEN_REFUSAL}


def bears_on(mechanism: Mechanism, scenario: Scenario | Chats) -> bool:
    """Whether outcomes can differ at all; the others are the same to the byte."""
    if isinstance(scenario, Chats):
        return mechanism is Mechanism.PREFIX_AFFINITY or (mechanism in _OF_CHATS and scenario.patience_s < inf)
    needs = _NEEDS.get(mechanism)
    return mechanism not in _OF_CHATS and (needs is None or needs(scenario))


def policies(mechanism: Mechanism) -> tuple[Policy, Policy]:
    """With the mechanism, and without it."""
    return Policy(Kind.OURS), Policy(Kind.OURS, without=frozenset({mechanism}))


def run_once(scenario: Scenario | Chats, policy: Policy, seed: int) -> Run:
    """One simulation; in this module so that other processes find it by name."""
    if isinstance(scenario, Chats):
        one: Chatted | Outcome = converse(scenario, policy.without, seed)
    else:
        one = simulate(scenario, policy, seed)
    return Run(scenario.name, policy.label, seed, one.p50_s, one.p99_s, one.throughput, one.goodput, one.in_time)


class Runs:
    """Runs by case, policy and seed, kept in a file as they come, so that what was interrupted continues from there."""

    def __init__(self, file: Path | None) -> None:
        """Raises OSError, and ValueError for a file of something else."""
        self._file = file
        self._known: dict[tuple[str, str, int], Run] = {}
        if file is not None and file.exists():
            with file.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    self._note(_parsed(row, file))

    def of(self, case: Case, policy: Policy, pool: Pool) -> tuple[Run, ...]:
        """One for each seed; those that are not known are run."""
        scenario, seeds = case.scenario, range(1, case.seeds + 1)
        name = scenario.name
        missing = [seed for seed in seeds if (name, policy.label, seed) not in self._known]
        new = pool.map(run_once, [scenario] * len(missing), [policy] * len(missing), missing)
        for run in new:
            self._note(run)
        self._append(new)
        return tuple(self._known[name, policy.label, seed] for seed in seeds)

    def _note(self, run: Run) -> None:
        self._known[run.case, run.without, run.seed] = run

    def _append(self, runs: Sequence[Run]) -> None:
        if self._file is None or not runs:
            return
        begins = not self._file.exists()
        with self._file.open("a", encoding="utf-8", newline="") as lines:
            writer = csv.writer(lines, lineterminator="\n")
            if begins:
                writer.writerow(field.name for field in fields(Run))
            writer.writerows(astuple(run) for run in runs)


def trials(chosen: Sequence[Case], mechanisms: Sequence[Mechanism], runs: Runs, pool: Pool) -> Iterator[Trial]:
    """Each mechanism in each case that it bears on."""
    for case in chosen:
        for mechanism in filter(case.bears_on, mechanisms):
            on, off = (runs.of(case, policy, pool) for policy in policies(mechanism))
            yield Trial(case.scenario.name, mechanism, on, off)


def means(runs: Sequence[Run]) -> tuple[float, float, float, float]:
    """p50 and p99 in seconds, answers a second, share in time, each the mean over the seeds."""
    figures = ((run.p50_s, run.p99_s, run.throughput, run.in_time) for run in runs)
    p50_s, p99_s, throughput, in_time = map(mean, zip(*figures, strict=True))
    return p50_s, p99_s, throughput, in_time


def _parsed(row: Mapping[str, str], file: Path) -> Run:
    try:
        figures = (float(row[field.name]) for field in fields(Run)[3:])
        return Run(row["case"], row["without"], int(row["seed"]), *figures)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not hold runs: {type(error).__name__}: {error}") from error


_WIDTH = 190
COLUMNS = (
    "mechanism", "case", "seeds", "p50 ms", "without", "p99 ms", "without", "answers/s", "without", "in time %",
    "without", "p99 gain %", "±", "in time/s gain %", "±", "verdict",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [each.value for each in Mechanism]
    parser.add_argument(
        "mechanism", nargs="*", type=Mechanism, metavar="MECHANISM", help=f"{', '.join(names)}; all when absent"
    )
    parser.add_argument(
        "--case", choices=all_cases(), nargs="+", metavar="CASE", help=f"(all): {', '.join(all_cases())}"
    )
    parser.add_argument("--most-seeds", type=int, default=25, metavar="N", help="of a case that takes little time (25)")
    parser.add_argument("--processes", type=int, metavar="N", help="to simulate in; 0: in this one (one for each core)")
    parser.add_argument(
        "--runs", type=Path, metavar="FILE.csv", help="keeps every run; those that it holds are not run again"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="the table")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, or 2 when it could not be done."""
    mechanisms = options.mechanism or list(Mechanism)
    chosen = [
        replace(case, seeds=min(case.seeds, options.most_seeds))
        for name, case in all_cases().items()
        if not options.case or name in options.case
    ]
    count = sum(case.bears_on(mechanism) for case in chosen for mechanism in mechanisms)
    found: list[Trial] = []
    try:
        runs = Runs(options.runs)
        with bars(transient=True) as progress, Pool(options.processes) as pool:
            bar = progress.add_task("", total=count)
            for trial in trials(chosen, mechanisms, runs, pool):
                found.append(trial)
                progress.update(bar, advance=1, description=f"{trial.case}, {trial.mechanism.value}")
        found.sort(key=lambda trial: list(Mechanism).index(trial.mechanism))
        if options.out:
            _write(options.out, found)
    except (OSError, ValueError) as error:
        return fail(options.prog, error)
    console = wide(_WIDTH)
    console.print(table(found))
    for mechanism in mechanisms:
        console.print(f"{mechanism.value}: {verdict([trial for trial in found if trial.mechanism is mechanism])}")
    return 0


def cells(trial: Trial) -> tuple[str, ...]:
    pairs = zip(means(trial.on), means(trial.off), (1e3, 1e3, 1.0, 100.0), (1, 1, 0, 1), strict=True)
    figures = [f"{factor * value:.{digits}f}" for on, off, factor, digits in pairs for value in (on, off)]
    gains = [f"{100.0 * value:.1f}" for value in (*trial.p99_gain, *trial.goodput_gain)]
    said = "pays" if trial.pays else "costs" if trial.costs else "level"
    return trial.mechanism.value, trial.case, str(len(trial.on)), *figures, *gains, said


def verdict(found: Sequence[Trial]) -> str:
    """Whether the mechanism is worth while in any case."""
    pays = [trial.case for trial in found if trial.pays]
    costs = [trial.case for trial in found if trial.costs]
    said = f"pays in {', '.join(pays)}" if pays else f"gains {WORTH_WHILE:.0%} in no case"
    return said + (f"; costs in {', '.join(costs)}" if costs else "")


def table(found: Sequence[Trial]) -> Table:
    shown = plain_table(*COLUMNS, names=2)
    for trial in found:
        shown.add_row(*cells(trial))
    return shown


def _write(file: Path, found: Sequence[Trial]) -> None:
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(map(cells, found))
