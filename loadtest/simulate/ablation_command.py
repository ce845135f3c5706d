"""`loadtest ablate`: switch each of the core's mechanisms off in turn, and see in every case what it gains."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.options import fail
from loadtest.screen import ERRORS, OUTPUT
from loadtest.simulate.ablation import WORTH_WHILE, Runs, Trial, all_cases, means, trials
from loadtest.simulate.mechanisms import Mechanism
from loadtest.simulate.pool import Pool

_WIDTH = 190
"""Of the table where the terminal's is unknown, or less."""
COLUMNS = (
    "mechanism", "case", "seeds", "p50 ms", "without", "p99 ms", "without", "answers/s", "without", "in time %",
    "without", "p99 gain %", "±", "in time/s gain %", "±", "verdict",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        runs = Runs(options.runs)
        with Progress(*columns, console=ERRORS, transient=True) as progress, Pool(options.processes) as pool:
            bar = progress.add_task("", total=count)
            for trial in trials(chosen, mechanisms, runs, pool):
                found.append(trial)
                progress.update(bar, advance=1, description=f"{trial.case}, {trial.mechanism.value}")
        found.sort(key=lambda trial: list(Mechanism).index(trial.mechanism))
        if options.out:
            _write(options.out, found)
    except (OSError, ValueError) as error:
        return fail("ablate", error)
    console = Console(highlight=False, width=max(OUTPUT.width, _WIDTH))
    console.print(table(found))
    for mechanism in mechanisms:
        console.print(f"{mechanism.value}: {verdict([trial for trial in found if trial.mechanism is mechanism])}")
    return 0


def cells(trial: Trial) -> tuple[str, ...]:
    """One line of the table."""
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
    """One row for each mechanism and case."""
    shown = Table(box=None, pad_edge=False)
    for title in COLUMNS:
        shown.add_column(title, justify="left" if title in {"mechanism", "case"} else "right", no_wrap=True)
    for trial in found:
        shown.add_row(*cells(trial))
    return shown


def _write(file: Path, found: Sequence[Trial]) -> None:
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(map(cells, found))
