"""`loadtest generate`: a generating engine in virtual time, after Pang et al. and Daniel et al."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from rich.table import Table

from loadtest.screen import OUTPUT, plain_table
from loadtest.simulate.generation.lengths_vary import MOST, RATES, Way, latency, throughput
from loadtest.simulate.generation.memory_and_sla import TABLE_1, TABLE_2, table_1, table_2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=list(_SHOWN), help="Pang et al.: table1, table2; Daniel et al.: lengths, latency"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(%(default)s)")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0."""
    OUTPUT.print(_SHOWN[options.what](options.seed))
    return 0


def _table_1(seed: int) -> Table:
    titles = ("printed fixed", "dynamic", "gain", "here dynamic", "gain", "at once fixed", "dynamic")
    table = plain_table("tokens/s of model, prompt, output", *titles)
    for row in TABLE_1:
        found = table_1(row, seed)
        table.add_row(
            f"{row.model}, {row.prompt:g}, {row.output:g}",
            f"{row.static:.0f}",
            f"{row.dynamic:.0f}",
            f"{row.dynamic / row.static - 1.0:.1%}",
            f"{found.dynamic:.0f}",
            f"{found.gain:.1%}",
            f"{found.static_running:.0f}",
            f"{found.dynamic_running:.0f}",
        )
    return table


def _table_2(seed: int) -> Table:
    titles = ("printed fixed", "dynamic", "gain", "here fixed", "dynamic", "gain", "at once fixed", "dynamic")
    table = plain_table("queries/s of model, prompt, output", *titles)
    for row in TABLE_2:
        found = table_2(row, seed)
        table.add_row(
            f"{row.model}, {row.prompt:g}, {row.output:g}",
            f"{row.static:.2f}",
            f"{row.dynamic:.2f}",
            f"{row.dynamic / row.static - 1.0:.1%}",
            f"{found.static:.2f}",
            f"{found.dynamic:.2f}",
            f"{found.gain:.1%}",
            f"{found.static_running:.0f}",
            f"{found.dynamic_running:.0f}",
        )
    return table


def _lengths(seed: int) -> Table:
    table = plain_table("tokens/s by the longest output", *map(str, MOST))
    for way in Way:
        table.add_row(way.value, *(f"{throughput(way, most, seed).tokens_per_s:.0f}" for most in MOST))
    return table


_SHARES, _RUNS = (10, 25, 50, 75, 90, 99), 20


def _latency(seed: int) -> Table:
    """The distribution of latencies over several runs, as percentiles."""
    table = plain_table("seconds of a request", *(f"p{share}" for share in _SHARES))
    for per_s in RATES:
        for way in Way:
            runs = [latency(way, per_s, each).latency_s for each in range(seed, seed + _RUNS)]
            found = np.percentile(np.concatenate(runs), _SHARES)
            table.add_row(f"{per_s:g}/s, {way.value}", *(f"{value:.1f}" for value in found))
    return table


_SHOWN: dict[str, Callable[[int], Table]] = {
    "table1": _table_1,
    "table2": _table_2,
    "lengths": _lengths,
    "latency": _latency,
}
