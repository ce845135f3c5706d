"""P1: 64 and 256 callers, one query a call, through aggregator and model server, and through each peer, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from operator import attrgetter

from loadtest.bench.figures import Figure
from loadtest.bench.peers import fastapi, infinity, vllm_stock
from loadtest.bench.setting import Plan
from loadtest.bench.sides import Load, Side, Turn, both_sides, paused, started
from loadtest.screen import ERRORS

NAME = "P1"
CALLERS = (64, 256)
_MANY = 32
_TURN_S = 6.0
_WARM_UP = 256
PEERS = {
    "vllm": "vLLM's server, tuned as ours",
    "vllm_stock": "vLLM's server, stock",
    "infinity": "Infinity",
    "fastapi": "sentence-transformers behind FastAPI",
}
_BOUNDS = {"vllm": "≥ 2.2", "vllm_stock": "≥ 16"}
_STREAM = "ours_64_stream"
_LISTS = Load(CALLERS[0] // 16, _MANY)


def measure(plan: Plan) -> list[Figure]:
    """All in turns, on the same machine with the client; peers are stopped between their turns."""
    found: dict[str, list[Turn]] = {}
    with both_sides(plan) as (ours, vllm), ExitStack() as stack:
        sides: dict[str, Side] = {"ours": ours, "vllm": vllm}
        for name, peer in (
            ("vllm_stock", vllm_stock(plan.folder)),
            ("infinity", infinity(plan.folder, ours.dtype)),
            ("fastapi", fastapi(plan.folder, ours.dtype)),
        ):
            stack.enter_context(started(peer))
            sides[name] = stack.enter_context(paused(peer))
        kinds = {f"{name}_{callers}": (side, Load(callers)) for callers in CALLERS for name, side in sides.items()}
        kinds[_STREAM] = (ours, Load(CALLERS[0], stream=True))
        kinds |= {f"{name}_lists": (sides[name], _LISTS) for name in ("ours", "vllm")}
        counts: dict[str, int] = {}
        for name, (side, load) in kinds.items():
            rate = side.turn(load, _WARM_UP).queries_per_s
            counts[name] = max(2 * load.callers * load.per_call, round(_TURN_S * rate))
        for turn in range(plan.repeats):
            order = list(kinds.items())
            for name, (side, load) in order if turn % 2 == 0 else reversed(order):
                found.setdefault(name, []).append(side.turn(load, counts[name]))
            said = ", ".join(f"{name} {turns[-1].queries_per_s:.0f}/s" for name, turns in found.items())
            ERRORS.print(f"P1 {turn + 1} of {plan.repeats}: {said}")
        dtype = ours.dtype
    return figures(found, plan.repeats, f"turns of {_TURN_S:g} s, MiniLM {dtype} (stock: its own choice)")


def figures(found: Mapping[str, Sequence[Turn]], repeats: int, what: str) -> list[Figure]:
    """Medians of each kind's turns, and of the ratios turn by turn."""
    result: list[Figure] = []
    for name, turns in found.items():

        def add(
            figure: str, unit: str, value: Callable[[Turn], float], name: str = name, turns: Sequence[Turn] = turns
        ) -> None:
            result.append(Figure(NAME, f"{name}_{figure}", statistics.median(map(value, turns)), unit, repeats, what))

        add("throughput", "query/s", attrgetter("queries_per_s"))
        add("p50", "ms", lambda turn: turn.p50_s * 1e3)
        add("p99", "ms", lambda turn: turn.p99_s * 1e3)
        add("server_cpu", "us/query", attrgetter("server_cpu_us"))

    def ratio(figure: str, one: str, other: str, value: str, bound: str = "") -> Figure:
        of = attrgetter(value)
        pairs = zip(found[one], found[other], strict=True)
        return Figure(NAME, figure, statistics.median(of(a) / of(b) for a, b in pairs), "ratio", repeats, what, bound)

    return [
        *result,
        *(
            ratio(
                f"over_{peer}_{callers}", f"ours_{callers}", f"{peer}_{callers}", "queries_per_s", _BOUNDS.get(peer, "")
            )
            for callers in CALLERS
            for peer in PEERS
        ),
        ratio("p99_over_vllm_64", "ours_64", "vllm_64", "p99_s", "≤ 1.0"),
        ratio("stream_over_calls", _STREAM, "ours_64", "queries_per_s"),
        ratio("lists_over_vllm", "ours_lists", "vllm_lists", "queries_per_s"),
    ]
