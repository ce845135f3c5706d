"""Fuzz decoders for as long as asked: each target in turn, from the corpus of the last time; then a table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.fuzz import corpus
from tests.fuzz.campaign import Result, covered_percent, fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    """1 if there is a finding, of this time or an earlier one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all when none is named")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="for each target (%(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path(".run/fuzz"), metavar="F", help="keeps corpora (%(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="add what was learned to tests/fuzz/corpus")
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - set(TARGETS)):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    names = options.targets or list(TARGETS)
    results: list[tuple[Result, float]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(names))
        for name in names:
            progress.update(bar, description=name)
            folder = options.folder / name
            result = fuzz(TARGETS[name], folder, options.seconds)
            results.append((result, covered_percent(TARGETS[name], folder)))
            if options.keep and not result.findings:
                corpus.keep(TARGETS[name], folder / "corpus")
            progress.advance(bar)
    _show(results)
    return int(any(result.findings for result, _ in results))


def _show(results: list[tuple[Result, float]]) -> None:
    table = Table(box=SIMPLE)
    table.add_column("target", no_wrap=True)
    for title in ("executions", "per s", "corpus", "coverage", "peak MB", "findings"):
        table.add_column(title, justify="right", no_wrap=True)
    for result, percent in results:
        figures = (result.executions, result.executions_per_s, result.corpus)
        found = f"[bold red]{len(result.findings)}" if result.findings else "0"
        table.add_row(
            result.target, *(f"{n:,}" for n in figures), f"{percent:.0f} %", f"{result.peak_memory_mb:,}", found
        )
    console = Console(highlight=False)
    console.print(table)
    for result, _ in results:
        for file in result.findings:
            console.print(f"python -m tests.fuzz.replay {result.target} {file}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
