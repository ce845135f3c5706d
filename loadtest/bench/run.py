"""`loadtest bench`: run the benchmarks in one setting, show their figures and keep them."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench import aggregator_cpu, batch_fill
from loadtest.bench.figures import RESULTS, Figure, append, table
from loadtest.bench.setting import Setting, setting
from loadtest.options import LOST, fail, positive_int
from loadtest.screen import ERRORS, OUTPUT
from loadtest.stack.addresses import DEFAULT_FOLDER
from loadtest.stack.errors import StackError
from loadtest.stack.lock import only_one

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
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=DEFAULT_FOLDER / "bench",
        metavar="DIR",
        help="Kafka's data and logs (%(default)s)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a figure misses its bound")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 in a strict run that missed a bound, 2 when something could not be measured."""
    figures: list[Figure] = []
    try:
        with only_one(options.data_dir), _setting(options) as here:
            for name in options.only or BENCHES:
                ERRORS.print(f"==> {name}")
                figures += BENCHES[name](here)
    except (StackError, OSError) as error:
        return fail("bench", error)
    append(figures, options.results)
    OUTPUT.print(table(figures))
    return LOST if options.strict and not all(figure.kept for figure in figures) else 0


@contextmanager
def _setting(options: argparse.Namespace) -> Generator[Setting]:
    """A Kafka of this run's own: its data goes, its logs stay."""
    data = options.data_dir / "kafka"
    shutil.rmtree(data, ignore_errors=True)
    try:
        with setting(
            options.data_dir, queries=options.queries, repeats=options.repeats, token_budget=options.token_budget
        ) as here:
            yield here
    finally:
        shutil.rmtree(data, ignore_errors=True)
