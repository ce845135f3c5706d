"""`loadtest generate`: a generating engine in virtual time, after Pang et al. and Daniel et al."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from loadtest.lab.generation.conversations import LOADS, converse
from loadtest.lab.generation.lengths_vary import MOST, Way, latency, throughput
from loadtest.lab.generation.limits import ByPaper, BySla
from loadtest.lab.generation.live import show
from loadtest.lab.generation.memory_and_sla import TABLE_1, TABLE_2, SlaLimit, figure_3, table_1, table_2
from loadtest.options import fail
from loadtest.screen import OUTPUT, plain_table
from loadtest.stack.errors import StackError

_FORMS: dict[str, SlaLimit] = {"paper": ByPaper, "ours": BySla}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=list(_SHOWN),
        help="Pang et al.: table1, table2, figure3; Daniel et al.: lengths, latency; conversations on several servers",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(%(default)s)")
    parser.add_argument("--form", choices=list(_FORMS), default="paper", help="the controller of table2 (%(default)s)")
    parser.add_argument("--live", action="store_true", help="measure it instead, on vLLM with SmolLM2, made smaller")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to draw what was measured (SVG)")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, or 2 when it could not be measured."""
    if options.live:
        return _measure(options)
    OUTPUT.print(_SHOWN[options.what](options))
    return 0


def _measure(options: argparse.Namespace) -> int:
    if options.what not in show.COLUMNS:
        return fail("generate", StackError(f"{options.what} is simulated only"))
    try:
        rows = show.measured(options.what)
        OUTPUT.print(show.table(options.what, rows))
        if options.plot is not None:
            options.plot.write_text(show.plot(options.what, rows), encoding="utf-8")
    except (StackError, OSError) as error:
        return fail("generate", error)
    return 0


def _table_1(options: argparse.Namespace) -> Table:
    titles = ("printed fixed", "dynamic", "gain", "here dynamic", "gain", "at once fixed", "dynamic")
    table = plain_table("tokens/s of model, prompt, output", *titles)
    for row in TABLE_1:
        found = table_1(row, options.seed)
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


def _table_2(options: argparse.Namespace) -> Table:
    titles = ("printed fixed", "dynamic", "gain", "here fixed", "dynamic", "gain", "at once fixed", "dynamic")
    table = plain_table("queries/s of model, prompt, output", *titles)
    for row in TABLE_2:
        found = table_2(row, _FORMS[options.form], options.seed)
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


def _figure_3(options: argparse.Namespace) -> Table:
    table = plain_table("requests at once", "ms a step", "tokens/s")
    for batch, step_ms, tokens_per_s in figure_3(seed=options.seed):
        table.add_row(str(batch), f"{step_ms:.1f}", f"{tokens_per_s:.0f}")
    return table


def _lengths(options: argparse.Namespace) -> Table:
    table = plain_table("tokens/s by the longest output", *map(str, MOST))
    for way in Way:
        table.add_row(way.value, *(f"{throughput(way, most, options.seed).tokens_per_s:.0f}" for most in MOST))
    return table


def _latency(_: argparse.Namespace) -> Table:
    table = plain_table("seconds a request", "1/s: p50", "p90", "4/s: p50", "p90")
    for way in Way:
        found = [latency(way, rate) for rate in (1.0, 4.0)]
        table.add_row(way.value, *(f"{value:.1f}" for one in found for value in (one.p50_s, one.p90_s)))
    return table


def _conversations(options: argparse.Namespace) -> Table:
    table = plain_table(
        "users", "by prefix", "at once", "first token: p50 s", "p99 s", "tokens/s", "of prompts computed"
    )
    for load in LOADS:
        for by_prefix, at_once in ((False, False), (False, True), (True, False), (True, True)):
            found = converse(load, by_prefix=by_prefix, at_once=at_once, seed=options.seed)
            table.add_row(
                f"{load.users}{' together' * load.together}",
                *("yes" if each else "no" for each in (by_prefix, at_once)),
                f"{found.first_p50_s:.3f}",
                f"{found.first_p99_s:.2f}",
                f"{found.tokens_per_s:.0f}",
                f"{found.computed:.0%}",
            )
    return table


_SHOWN: dict[str, Callable[[argparse.Namespace], Table]] = {
    "table1": _table_1,
    "table2": _table_2,
    "figure3": _figure_3,
    "lengths": _lengths,
    "latency": _latency,
    "conversations": _conversations,
}
