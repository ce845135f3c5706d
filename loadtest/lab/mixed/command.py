"""`loadtest mixed`: servers that embed and generate in the same steps, in virtual time, after the ORTHRUS paper."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from rich.table import Table

from loadtest.lab.mixed import orthrus, small_server
from loadtest.lab.mixed.run import Record
from loadtest.lab.mixed.server import Task
from loadtest.lab.report.mixed import by_share, of_phases
from loadtest.options import fail
from loadtest.plots import draw_alone
from loadtest.screen import plain_table, wide
from loadtest.section import Plot

_WIDTH = 150
_PERCENTS = (50, 99)
Shown = tuple[Table, Plot | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=list(_SHOWN),
        help="shares: throughput by the share of generations; table1, latency, phases: figures of the paper;"
        " policies: who waits under each policy, on a small server",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw shares or phases (SVG)")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, or 2 when it could not be done."""
    table, plot = _SHOWN[options.what](options.seed)
    wide(_WIDTH).print(table)
    if options.plot is None:
        return 0
    if plot is None:
        return fail("mixed", ValueError(f"{options.what} has no plot: give --plot with shares or phases"))
    try:
        options.plot.write_text(draw_alone(plot, options.what), encoding="utf-8")
    except OSError as error:
        return fail("mixed", error)
    return 0


def _shares(seed: int) -> Shown:
    found = {
        fleet.name: [(share, orthrus.throughput(fleet, share, seed)) for share in orthrus.SHARES]
        for fleet in orthrus.FLEETS
    }
    table = plain_table("normalized requests/s: generations", *found)
    for place, share in enumerate(orthrus.SHARES):
        table.add_row(f"{share:.0%}", *(f"{points[place][1]:.1f}" for points in found.values()))
    return table, by_share(found)


def _table_1(seed: int) -> Shown:
    columns = ("split 1:3", "mixed", "gain", "split 1:3", "mixed", "gain", "split, embedding as printed", "gain")
    table = plain_table("normalized requests/s: generations", *columns)
    table.add_row("", "(printed)", "", "", "(here)")
    for row in orthrus.TABLE_1:
        printed_split, printed = (orthrus.normalized(*pair) for pair in (row.split, row.mixed))
        split, mixed = (orthrus.throughput(fleet, row.share, seed) for fleet in (orthrus.SPLIT_1_3, orthrus.MIXED))
        slower = orthrus.throughput(orthrus.SPLIT_1_3, row.share, seed, row.embedding_card_per_s)
        cells = [
            *(f"{printed_split:.1f}", f"{printed:.1f}", f"{printed / printed_split:.2f}"),
            *(f"{split:.1f}", f"{mixed:.1f}", f"{mixed / split:.2f}", f"{slower:.1f}", f"{mixed / slower:.2f}"),
        ]
        table.add_row(f"{row.share:.0%}", *cells)
    for task in Task:
        found = f"{orthrus.saturated(task):.1f}"
        table.add_row(f"one card, {task} alone, requests/s", "", f"{orthrus.SATURATED[task]:.1f}", "", "", found)
    return table, None


def _latency(_: int) -> Shown:
    table = plain_table("seconds, all at once", "embeddings p50", "p99", "generations p50", "p99", "busy")
    for fleet in orthrus.FLEETS:
        found = orthrus.at_once(fleet)
        seconds = (found.percentile_s(task, percent) for task in Task for percent in _PERCENTS)
        table.add_row(fleet.name, *(f"{each:.1f}" for each in seconds), f"{found.busy:.0%}")
    return table, None


def _phases(seed: int) -> Shown:
    found = {fleet.name: [orthrus.phase(fleet, share, seed) for share in orthrus.PHASES] for fleet in orthrus.FLEETS}
    slower = [orthrus.phase(orthrus.SPLIT_1_3, share, seed, orthrus.TABLE_1[0].split[0]) for share in orthrus.PHASES]
    found["split 1:3, embedding as printed"] = slower
    titles = (f"{share:.0%} generations" for share in orthrus.PHASES)
    table = plain_table("seconds of 1,000 requests", *titles, "mean", "busy")
    for name, phases in found.items():
        seconds = [each.seconds for each in phases]
        busy = sum(each.busy * each.seconds for each in phases) / sum(seconds)
        table.add_row(name, *(f"{each:.1f}" for each in (*seconds, mean(seconds))), f"{busy:.0%}")
    return table, of_phases({name: [each.seconds for each in phases] for name, phases in found.items()})


def _policies(seed: int) -> Shown:
    titles = ("requests/s", "embeddings p50 ms", "p99", "first token p50 ms", "p99", "between tokens p50 ms", "p99")
    table = plain_table("clients, generations, policy", *titles)
    for clients in small_server.CLIENTS:
        for share in small_server.SHARES:
            for fleet in small_server.FLEETS:
                found = small_server.steady(fleet, clients, share, seed)
                table.add_row(
                    f"{clients}, {share:.0%}, {fleet.name}",
                    f"{sum(map(found.per_s, Task)):.1f}",
                    *(f"{1e3 * value:.0f}" for value in _times(found)),
                )
    return table, None


def _times(found: Record) -> list[float]:
    """p50 and p99 in seconds: of embeddings, to the first token, between tokens."""
    return [
        *(found.percentile_s(Task.EMBED, percent) for percent in _PERCENTS),
        *map(found.first_percentile_s, _PERCENTS),
        *map(found.between_percentile_s, _PERCENTS),
    ]


_SHOWN: dict[str, Callable[[int], Shown]] = {
    "shares": _shares,
    "table1": _table_1,
    "latency": _latency,
    "phases": _phases,
    "policies": _policies,
}
