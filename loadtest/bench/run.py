"""`loadtest bench`: run the benchmarks in one setting, show their figures and keep them."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtest.bench import (
    aggregator_cpu,
    batch_fill,
    beside_backlog,
    front_door,
    kafka_through,
    mechanisms,
    model_server,
    one_by_one,
    one_in_flight,
    unary_cpu,
)
from loadtest.bench.figures import RESULTS, Figure, append, table
from loadtest.bench.setting import Plan
from loadtest.bench.texts import queued, smollm2_streams, tiny_streams
from loadtest.options import LOST, fail, positive_int
from loadtest.screen import ERRORS, OUTPUT
from loadtest.stack.addresses import DEFAULT_FOLDER
from loadtest.stack.errors import StackError
from loadtest.stack.lock import only_one

_MODULES = (
    front_door,
    kafka_through,
    model_server,
    aggregator_cpu,
    one_in_flight,
    batch_fill,
    unary_cpu,
    beside_backlog,
    one_by_one,
    mechanisms,
    tiny_streams,
    smollm2_streams,
    queued,
)
BENCHES = {bench.NAME: bench.measure for bench in _MODULES}
"""Each takes a Plan and returns its Figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("only", nargs="*", type=_bench, metavar="BENCH", help=f"{', '.join(BENCHES)}; all when absent")
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
    plan = Plan(options.data_dir, options.queries, options.repeats, options.token_budget)
    figures: list[Figure] = []
    try:
        with only_one(options.data_dir):
            for name in options.only or BENCHES:
                ERRORS.print(f"==> {name}")
                figures += BENCHES[name](plan)
    except (StackError, OSError) as error:
        return fail("bench", error)
    append(figures, options.results)
    OUTPUT.print(table(figures))
    return LOST if options.strict and not all(figure.kept for figure in figures) else 0


def _bench(name: str) -> str:
    if name not in BENCHES:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(BENCHES)}")
    return name
