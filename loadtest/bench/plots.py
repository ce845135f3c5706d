"""Plots of what a benchmark found, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.bench.calls import front_door
from loadtest.bench.figures import Figure
from loadtest.bench.records import growth, kafka_through
from loadtest.plots import Plot, Series, draw
from loadtest.screen import counted

_P1_NAMES = {"ours": "tokenbatch", "http": "tokenbatch, HTTP", **front_door.PEERS}
_P2_NAMES = {
    "ours": "tokenbatch",
    "plain": "plain consumer of vLLM's server, its best batch",
    "one_a_call": "plain consumer of vLLM's server, 1 text a call",
    "engine": "the engine alone",
}


def write(figures: Sequence[Figure], folder: Path) -> None:
    """Write `P1.svg`, `P2.svg` or `growth.svg` where these are figures of theirs."""
    name = figures[0].bench
    values = {each.figure: each.value for each in figures}
    plot = _PLOTS.get(name)
    if plot:
        (folder / f"{name}.svg").write_text(draw(plot(values), name), encoding="utf-8")


def _calls(values: dict[str, float]) -> Plot:
    return Plot(
        "Calls of one question, MiniLM on this machine",
        "",
        "questions/s",
        [
            Series(
                counted(callers, "caller"),
                [(x, values[f"{name}_{callers}_throughput"]) for x, name in enumerate(_P1_NAMES)],
            )
            for callers in front_door.CALLERS
        ],
        bars=True,
        x_names=list(_P1_NAMES.values()),
        own=2,
    )


def _kafka(values: dict[str, float]) -> Plot:
    points = [(float(x), values[f"{name}_throughput"]) for x, name in enumerate(_P2_NAMES)]
    series = [Series("questions/s", points)]
    return Plot("From Kafka to Kafka", "", "questions/s", series, bars=True, x_names=list(_P2_NAMES.values()), own=1)


def _growth(values: dict[str, float]) -> Plot:
    points = [(float(x), values[f"cpu_{wanted}_queued"]) for x, wanted in enumerate(growth.QUEUED)]
    return Plot(
        "What a question costs the aggregator",
        "questions that wait",
        "µs of CPU time",
        [Series("µs of CPU time", points)],
        bars=True,
        x_names=[f"{wanted:,}" for wanted in growth.QUEUED],
    )


_PLOTS = {front_door.NAME: _calls, kafka_through.NAME: _kafka, growth.NAME: _growth}
