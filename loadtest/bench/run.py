"""`loadtest bench`: run the benchmarks in one setting, show their figures and keep them."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from loadtest.bench import aggregator_cpu, batch_fill
from loadtest.bench.figures import RESULTS, Figure, append, table
from loadtest.bench.setting import setting
from loadtest.options import FAILED, LOST, fail, positive_int
from loadtest.screen import ERRORS, OUTPUT
from loadtest.stack.errors import StackError

BENCHES = {bench.NAME: bench.measure for bench in (aggregator_cpu, batch_fill)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "only", nargs="*", choices=[*BENCHES, []], metavar="BENCH", help=f"of {', '.join(BENCHES)}; all when absent"
    )
    parser.add_argument(
        "--queries", type=positive_int, default=60_000, metavar="N", help="in the backlog (%(default)s)"
    )
    parser.add_argument("--repeats", type=positive_int, default=3, metavar="R", help="turns of each side (%(default)s)")
    parser.add_argument("--token-budget", type=positive_int, default=2048, metavar="T", help="(%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="where figures are appended")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a figure misses its bound")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 in a strict run that missed a bound, 2 when something could not be measured."""
    figures: list[Figure] = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tokenbatch-bench-") as folder,
            setting(
                Path(folder), queries=options.queries, repeats=options.repeats, token_budget=options.token_budget
            ) as here,
        ):
            for name in options.only or BENCHES:
                ERRORS.print(f"==> {name}")
                figures += BENCHES[name](here)
    except (StackError, TimeoutError) as error:
        return fail("bench", error) or FAILED
    append(figures, options.results)
    OUTPUT.print(table(figures))
    return LOST if options.strict and not all(figure.kept for figure in figures) else 0
