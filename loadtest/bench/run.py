"""`loadtest bench`: run the benchmarks in one setting, show their figures and keep them."""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import replace
from pathlib import Path

from loadtest.bench import lengths, plots
from loadtest.bench.calls import batching, cached, front_door, isolation
from loadtest.bench.figures import RESULTS, Figure, append, table
from loadtest.bench.mixed import measure as mixed
from loadtest.bench.records import aggregator_cpu, growth, kafka_through
from loadtest.bench.setting import MixedPlan, Plan
from loadtest.options import LOST, fail, positive_int
from loadtest.screen import ERRORS, OUTPUT
from loadtest.stack.addresses import DEFAULT_FOLDER, only_one
from loadtest.stack.errors import StackError

BENCHES = {
    front_door.NAME: front_door.measure,
    kafka_through.NAME: kafka_through.measure,
    aggregator_cpu.NAME: aggregator_cpu.measure,
    batching.NAME: batching.measure,
    lengths.NAME: lengths.measure,
    isolation.NAME: isolation.measure,
    cached.NAME: cached.measure,
    growth.NAME: growth.measure,
    mixed.MID: mixed.measure_mid,
    mixed.SMOLLM2: mixed.measure_smollm2,
}
"""Each takes a Plan and returns its Figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("only", nargs="*", type=_bench, metavar="BENCH", help=f"{', '.join(BENCHES)}; all when absent")
    parser.add_argument(
        "--queries", type=positive_int, default=50_000, metavar="N", help="queries in the backlog (%(default)s)"
    )
    parser.add_argument(
        "--turn-share", type=float, default=1.0, metavar="S", help="of the usual time of a turn, to try (%(default)s)"
    )
    parser.add_argument("--repeats", type=positive_int, default=3, metavar="R", help="turns of each side (%(default)s)")
    parser.add_argument("--token-budget", type=positive_int, default=2048, metavar="T", help="(%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="where figures are appended")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=DEFAULT_FOLDER / "bench",
        metavar="DIR",
        help="Kafka's data, logs and plots (%(default)s)",
    )
    group = parser.add_argument_group(f"for {mixed.MID} and {mixed.SMOLLM2}")
    group.add_argument("--full", action="store_true", help="every tenth share, 6 s a turn")
    group.add_argument(
        "--shares", nargs="+", type=int, metavar="%", help="of the requests generate (0 10 50 90 100; 0 to 100 if full)"
    )
    group.add_argument("--parts", nargs="+", choices=mixed.PARTS, metavar="PART", help=f"of {', '.join(mixed.PARTS)}")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a figure misses its bound")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 in a strict run that missed a bound, 2 when something could not be measured."""
    plan = Plan(
        options.data_dir,
        options.queries,
        options.repeats,
        options.token_budget,
        mixed_plan(options),
        options.turn_share,
    )
    names: list[str] = options.only or list(BENCHES)
    figures: list[Figure] = []
    began_s = time.monotonic()
    try:
        with only_one(options.data_dir):
            plan.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(plan.profiles, ignore_errors=True)  # what was measured beside other work describes that work
            for number, name in enumerate(names, 1):
                ERRORS.print(
                    f"==> {name} ({number} of {len(names)}, after {(time.monotonic() - began_s) / 60:.1f} min)"
                )
                found = BENCHES[name](plan)
                append(found, options.results)
                plots.write(found, plan.folder)
                figures += found
    except (StackError, OSError, TimeoutError) as error:
        return fail(options.prog, error)
    OUTPUT.print(table(figures))
    return LOST if options.strict and not all(figure.kept for figure in figures) else 0


def mixed_plan(options: argparse.Namespace) -> MixedPlan:
    """What the options ask of the benchmarks of mixed steps."""
    plan = MixedPlan()
    if options.full:
        shares = tuple(tenths / 10 for tenths in range(11))
        plan = replace(plan, shares=shares, seconds=6.0)
    if options.shares:
        plan = replace(plan, shares=tuple(share / 100 for share in options.shares))
    return replace(plan, parts=options.parts) if options.parts else plan


def _bench(name: str) -> str:
    if name not in BENCHES:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(BENCHES)}")
    return name
