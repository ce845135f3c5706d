"""P1: 64 and 256 callers with one query a call, through aggregator and model server, over vLLM's own, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from operator import attrgetter

from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan
from loadtest.bench.sides import Load, Turn, both_sides
from loadtest.screen import ERRORS

NAME = "P1"
_CALLERS = 64
_MANY_CALLERS = 256
_MANY = 32
_QUERIES = 1600
"""A turn: some ten seconds at a hundred queries a second."""
_WARM_UP = 320
_REST_S = 3.0
"""Before each turn: vLLM's processes spin on for a moment after their last answer."""

_ONE, _MORE, _STREAM, _LISTS = (
    Load(_CALLERS),
    Load(_MANY_CALLERS),
    Load(_CALLERS, stream=True),
    Load(_CALLERS // 16, _MANY),
)


def measure(plan: Plan) -> list[Figure]:
    """Both in turns, on the same machine with the client; whoever waits is idle."""
    count = min(_QUERIES, plan.queries)
    found: dict[str, list[Turn]] = {}
    with both_sides(plan) as (ours, theirs):
        kinds = {
            "ours": (ours, _ONE),
            "vllm": (theirs, _ONE),
            "ours_256": (ours, _MORE),
            "vllm_256": (theirs, _MORE),
            "stream": (ours, _STREAM),
            "ours_lists": (ours, _LISTS),
            "vllm_lists": (theirs, _LISTS),
        }
        for side, load in kinds.values():
            side.turn(load, min(_WARM_UP, count))
        for turn in range(plan.repeats):
            order = list(kinds.items())
            for name, (side, load) in order if turn % 2 == 0 else reversed(order):
                time.sleep(_REST_S)
                found.setdefault(name, []).append(side.turn(load, count))
            said = ", ".join(f"{name} {turns[-1].queries_per_s:.0f}/s" for name, turns in found.items())
            ERRORS.print(f"P1 {turn + 1} of {plan.repeats}: {said}")
        dtype = ours.dtype
    return _figures(found, plan.repeats, count, dtype)


def _figures(found: dict[str, list[Turn]], repeats: int, count: int, dtype: str) -> list[Figure]:
    what = f"{count} unique questions a turn, MiniLM {dtype}, client on the same machine"
    notes = {
        "ours": f"{_CALLERS} callers, one query a call; {what}",
        "ours_256": f"{_MANY_CALLERS} callers, one query a call; {what}",
        "stream": f"one EmbedStream, {_CALLERS} under way; {what}",
        "ours_lists": f"{_LISTS.callers} callers, {_MANY} queries a call; {what}",
    }
    notes |= {name.replace("ours", "vllm"): note for name, note in notes.items() if name.startswith("ours")}
    figures: list[Figure] = []
    for name, turns in found.items():

        def add(
            figure: str, unit: str, value: Callable[[Turn], float], name: str = name, turns: list[Turn] = turns
        ) -> None:
            median = statistics.median(map(value, turns))
            figures.append(Figure(NAME, f"{name}_{figure}", median, unit, repeats, notes[name]))

        add("throughput", "query/s", attrgetter("queries_per_s"))
        add("p50", "ms", lambda turn: turn.p50_s * 1e3)
        add("p99", "ms", lambda turn: turn.p99_s * 1e3)
        add("server_cpu", "us/query", attrgetter("server_cpu_us"))
        add("client_cpu", "us/query", attrgetter("client_cpu_us"))

    def ratio(one: str, other: str, value: Callable[[Turn], float]) -> float:
        return statistics.median(value(a) / value(b) for a, b in zip(found[one], found[other], strict=True))

    per_s: Callable[[Turn], float] = attrgetter("queries_per_s")
    p99_s: Callable[[Turn], float] = attrgetter("p99_s")
    return [
        *figures,
        Figure(NAME, "throughput_over_vllm", ratio("ours", "vllm", per_s), "ratio", repeats, notes["ours"], "≥ 2.2"),
        Figure(NAME, "p99_over_vllm", ratio("ours", "vllm", p99_s), "ratio", repeats, notes["ours"], "≤ 1.0"),
        Figure(
            NAME,
            "throughput_over_vllm_256",
            ratio("ours_256", "vllm_256", per_s),
            "ratio",
            repeats,
            notes["ours_256"],
            "≥ 2.2",
        ),
        Figure(NAME, "stream_over_calls", ratio("stream", "ours", per_s), "ratio", repeats, notes["stream"]),
        Figure(
            NAME, "lists_over_vllm", ratio("ours_lists", "vllm_lists", per_s), "ratio", repeats, notes["ours_lists"]
        ),
    ]
