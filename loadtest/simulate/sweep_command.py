"""`loadtest sweep`: find every policy's best setting in every case, compare the winners, and keep both."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.options import fail, positive
from loadtest.screen import ERRORS, OUTPUT
from loadtest.simulate import cases
from loadtest.simulate.pool import Pool
from loadtest.simulate.scenario import Kind
from loadtest.simulate.sweep import SWEPT_ON, Compared, compare, swept

_WIDTH = 170
"""Of the table where the terminal's is unknown, or less."""
COLUMNS = (
    "case", "policy", "setting", "seeds", "in time %", "±", "in time/s", "±", "p50 ms", "±", "p99 ms", "±", "chosen",
)  # fmt: skip
_FIGURES = (("in_time", 100.0, 2), ("goodput", 1.0, 1), ("p50_s", 1e3, 2), ("p99_s", 1e3, 2))
"""What the columns hold: the outcome's figure, times what, to how many digits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
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
    shown = Table(box=None, pad_edge=False)
    for title in ("case", "policy", "in time/s", "p50 ms", "p99 ms", "beyond ours: in time/s", "p50 ms", "p99 ms"):
        shown.add_column(title, justify="left" if title in {"case", "policy"} else "right", no_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERRORS, transient=True) as progress:
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
        return fail("sweep", error)
    Console(highlight=False, width=max(OUTPUT.width, _WIDTH)).print(shown)
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
