"""Have a figure measured by a program of its own, and show it as a table and as a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from loadtest.plots import draw_alone
from loadtest.screen import plain_table
from loadtest.section import Plot, Series
from loadtest.stack.part import output_of
from loadtest.texts.smollm2 import smollm2

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
}
_TIMEOUT_S = 1800.0
_TITLES = {
    "lengths": "Output tokens a second by the spread of output lengths",
    "latency": "Median seconds a request",
    "table1": "Gain in output tokens a second over a fixed batch",
    "table2": "Gain in requests a second over a fixed batch",
}
COLUMNS = {
    "lengths": ("way", "most", "sd", "tokens_per_s", "running"),
    "latency": ("way", "rate", "p50_s", "p90_s", "tokens_per_s"),
    "table1": ("model", "prompt", "output", "way", "tokens_per_s", "gain", "running", "recomputed"),
    "table2": (
        *("model", "output", "way", "requests_per_s", "gain"),
        *("running", "between_p50_s", "between_p99_s", "target_s"),
    ),
}
Row = dict[str, Any]


def measured(what: str) -> list[Row]:
    """The figure's rows. Raises StackError when it cannot be measured."""
    told = output_of(
        "loadtest.lab.generation.live", what, str(smollm2()), environment=_ENVIRONMENT, timeout_s=_TIMEOUT_S
    )
    rows: list[Row] = json.loads(told.strip().rpartition("\n")[2])["rows"]
    return with_gains(rows)


def with_gains(rows: Sequence[Row]) -> list[Row]:
    """Each row with what it gains over the fixed batch of its model and lengths, where there is one."""
    fixed = {_place(row): row["tokens_per_s"] for row in rows if row["way"] == "fixed"}
    told: list[Row] = []
    for row in rows:
        gained = {"gain": row["tokens_per_s"] / fixed[_place(row)] - 1.0} if _place(row) in fixed else {}
        per_s = {"requests_per_s": row["requests"] / row["seconds"]} if "requests" in row else {}
        told.append({**row, **gained, **per_s})
    return told


def table(what: str, rows: Sequence[Row]) -> Table:
    shown = plain_table(*COLUMNS[what])
    for row in rows:
        shown.add_row(*(_text(name, row[name]) for name in COLUMNS[what]))
    return shown


def plot(what: str, rows: Sequence[Row]) -> str:
    return draw_alone(_by_gain(what, rows) if "gain" in rows[0] else _by_way(what, rows), what)


def _by_way(what: str, rows: Sequence[Row]) -> Plot:
    x, y = ("sd", "tokens_per_s") if what == "lengths" else ("rate", "p50_s")
    labels = {
        "sd": "standard deviation of output tokens",
        "rate": "requests a second",
        "tokens_per_s": "token/s",
        "p50_s": "s",
    }
    ways = list(dict.fromkeys(row["way"] for row in rows))
    series = [Series(way, [(row[x], row[y]) for row in rows if row["way"] == way]) for way in ways]
    return Plot(_TITLES[what], labels[x], labels[y], series, from_zero=True)


def _by_gain(what: str, rows: Sequence[Row]) -> Plot:
    places = list(dict.fromkeys(map(_place, rows)))
    ways = [way for way in dict.fromkeys(row["way"] for row in rows) if way != "fixed"]
    series = [
        Series(way, [(places.index(_place(row)), 100 * row["gain"]) for row in rows if row["way"] == way])
        for way in ways
    ]
    names = [f"{model}: {prompt:g}, {output:g}" for model, prompt, output in places]
    return Plot(_TITLES[what], "model of the paper: prompt, output tokens here", "%", series, bars=True, x_names=names)


def _place(row: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return row.get("model"), row.get("prompt"), row.get("output")


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.1%}" if name in {"gain", "recomputed"} else f"{value:.3g}"
