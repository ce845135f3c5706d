"""P10: 64 connections over HTTP, one query a call, beside vLLM's own server; CPU time of a call beside an echo's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from loadtest.bench import unary_cpu
from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan
from loadtest.bench.sides import Load, Side, Turn, both_sides
from loadtest.screen import ERRORS

NAME = "P10"
_CALLERS = 64
_TURN_S = 6.0
_WARM_UP = 512


def measure(plan: Plan) -> list[Figure]:
    """The aggregator over HTTP and gRPC, and vLLM's server, in turns; then the aggregator and an echo."""
    found: dict[str, list[Turn]] = {}
    with both_sides(plan) as (ours, vllm):
        kinds: dict[str, tuple[Side, Load]] = {
            "http": (ours, Load(_CALLERS, http=True)),
            "vllm": (vllm, Load(_CALLERS)),
            "grpc": (ours, Load(_CALLERS)),
        }
        counts = {
            name: max(2 * _CALLERS, round(_TURN_S * side.turn(load, _WARM_UP).queries_per_s))
            for name, (side, load) in kinds.items()
        }
        for turn in range(plan.repeats):
            order = list(kinds.items())
            for name, (side, load) in order if turn % 2 == 0 else reversed(order):
                found.setdefault(name, []).append(side.turn(load, counts[name]))
            said = ", ".join(f"{name} {turns[-1].queries_per_s:.0f}/s" for name, turns in found.items())
            ERRORS.print(f"{NAME} {turn + 1} of {plan.repeats}: {said}")
        notes = f"turns of {_TURN_S:g} s, {_CALLERS} connections, MiniLM {ours.dtype}"
    return [*figures(found, plan.repeats, notes), *unary_cpu.measure_http(plan, NAME)]


def figures(found: Mapping[str, Sequence[Turn]], repeats: int, notes: str) -> list[Figure]:
    """Medians of each side's turns, and of the ratios turn by turn."""

    def figure(name: str, unit: str, values: Sequence[float], wanted: str = "") -> Figure:
        return Figure(NAME, name, statistics.median(values), unit, repeats, notes, wanted)

    def ratio(name: str, one: str, other: str, of: Callable[[Turn], float], wanted: str = "") -> Figure:
        pairs = zip(found[one], found[other], strict=True)
        return figure(name, "ratio", [of(a) / of(b) for a, b in pairs], wanted)

    result: list[Figure] = []
    for name, turns in found.items():
        result += [
            figure(f"{name}_throughput", "query/s", [each.queries_per_s for each in turns]),
            figure(f"{name}_p50", "ms", [each.p50_s * 1e3 for each in turns]),
            figure(f"{name}_p99", "ms", [each.p99_s * 1e3 for each in turns]),
            figure(f"{name}_server_cpu", "us/query", [each.server_cpu_us for each in turns]),
        ]
    return [
        *result,
        ratio("over_vllm", "http", "vllm", lambda turn: turn.queries_per_s, "≥ 1.5"),
        ratio("p99_over_vllm", "http", "vllm", lambda turn: turn.p99_s, "≤ 1.0"),
        ratio("over_grpc", "http", "grpc", lambda turn: turn.queries_per_s),
    ]
