"""P1: 64 and 256 callers, one query a call, through aggregator and model server, and through each peer, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.peers import fastapi, infinity, vllm_stock
from loadtest.lab.bench.setting import Plan
from loadtest.lab.bench.sides import Load, Side, Turn, both_sides, paused, ratio, timed, usual
from loadtest.lab.bench.turns import Medians

NAME = "P1"
CALLERS = (64, 256)
_TURN_S = 6.0
PEERS = {
    "vllm": "vLLM's server, tuned as ours",
    "vllm_stock": "vLLM's server, stock",
    "infinity": "Infinity",
    "fastapi": "sentence-transformers behind FastAPI",
}
_BOUNDS = {
    **{
        f"over_{peer}_{callers}": bound
        for peer, bound in (("vllm", "≥ 2.2"), ("vllm_stock", "≥ 16"))
        for callers in CALLERS
    },
    "p99_over_vllm_64": "≤ 1.0",
}
_STREAM = "ours_64_stream"
_LISTS = Load(CALLERS[0] // 16, 32)


def measure(plan: Plan) -> list[Figure]:
    """All in turns, on the same machine with the client; peers are stopped between their turns."""
    with both_sides(plan) as (ours, vllm), ExitStack() as stack:
        sides: dict[str, Side] = {"ours": ours, "vllm": vllm}
        for name, peer in (
            ("vllm_stock", vllm_stock(plan.folder)),
            ("infinity", infinity(plan.folder, ours.dtype)),
            ("fastapi", fastapi(plan.folder, ours.dtype)),
        ):
            sides[name] = stack.enter_context(paused(stack.enter_context(peer)))
        kinds = {f"{name}_{callers}": (side, Load(callers)) for callers in CALLERS for name, side in sides.items()}
        kinds[_STREAM] = (ours, Load(CALLERS[0], stream=True))
        kinds |= {f"{name}_lists": (sides[name], _LISTS) for name in ("ours", "vllm")}
        found = timed(NAME, plan, kinds, _TURN_S)
        return figures(found, plan.repeats, f"turns of {_TURN_S:g} s, MiniLM {ours.dtype} (stock: its own choice)")


def figures(found: Mapping[str, Sequence[Turn]], repeats: int, notes: str) -> list[Figure]:
    """Medians of each kind's turns, and of the ratios turn by turn."""
    medians = Medians(NAME, repeats, notes, _BOUNDS)
    return [
        *usual(found, medians),
        *(
            ratio(medians, found, f"over_{peer}_{callers}", (f"ours_{callers}", f"{peer}_{callers}"))
            for callers in CALLERS
            for peer in PEERS
        ),
        ratio(medians, found, "p99_over_vllm_64", ("ours_64", "vllm_64"), "p99_s"),
        ratio(medians, found, "stream_over_calls", (_STREAM, "ours_64")),
        ratio(medians, found, "lists_over_vllm", ("ours_lists", "vllm_lists")),
    ]
