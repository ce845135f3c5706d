"""Plots of what a benchmark found, one file each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    found = {each.figure: each for each in figures}
    plot = _PLOTS.get(name)
    if plot:
        (folder / f"{name}.svg").write_text(draw(plot(found), name), encoding="utf-8")


def _series(name: str, found: Mapping[str, Figure], figures: Iterable[str]) -> Series:
    """Figures beside each other, with how far their turns differ."""
    shown = [found[figure] for figure in figures]
    spread = {float(x): each.spread for x, each in enumerate(shown) if each.spread}
    return Series(name, [(float(x), each.value) for x, each in enumerate(shown)], spread=spread)


def _calls(found: Mapping[str, Figure]) -> Plot:
    return Plot(
        "Calls of one question, MiniLM on this machine",
        "",
        "questions/s",
        [
            _series(counted(callers, "caller"), found, (f"{name}_{callers}_throughput" for name in _P1_NAMES))
            for callers in front_door.CALLERS
        ],
        bars=True,
        x_names=list(_P1_NAMES.values()),
        own=2,
    )


def _kafka(found: Mapping[str, Figure]) -> Plot:
    series = [_series("questions/s", found, (f"{name}_throughput" for name in _P2_NAMES))]
    return Plot("From Kafka to Kafka", "", "questions/s", series, bars=True, x_names=list(_P2_NAMES.values()), own=1)


def _growth(found: Mapping[str, Figure]) -> Plot:
    return Plot(
        "What a question costs the aggregator",
        "questions that wait",
        "µs of CPU time",
        [_series("µs of CPU time", found, (f"cpu_{wanted}_queued" for wanted in growth.QUEUED))],
        bars=True,
        x_names=[f"{wanted:,}" for wanted in growth.QUEUED],
    )


_PLOTS = {front_door.NAME: _calls, kafka_through.NAME: _kafka, growth.NAME: _growth}
