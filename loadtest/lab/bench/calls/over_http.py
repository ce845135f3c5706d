"""P10: 64 connections over HTTP, one query a call, beside vLLM's own server; CPU time of a call beside an echo's."""

from __future__ import annotations

from loadtest.lab.bench.calls import unary_cpu
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.setting import Plan
from loadtest.lab.bench.sides import Load, Side, both_sides, ratio, timed, usual
from loadtest.lab.bench.turns import Medians

NAME = "P10"
_CALLERS = 64
_TURN_S = 6.0
_BOUNDS = {"over_vllm": "≥ 1.5", "p99_over_vllm": "≤ 1.0"}


def measure(plan: Plan) -> list[Figure]:
    """The aggregator over HTTP and gRPC, and vLLM's server, in turns; then the aggregator and an echo."""
    with both_sides(plan) as (ours, vllm):
        kinds: dict[str, tuple[Side, Load]] = {
            "http": (ours, Load(_CALLERS, http=True)),
            "vllm": (vllm, Load(_CALLERS)),
            "grpc": (ours, Load(_CALLERS)),
        }
        found = timed(NAME, plan, kinds, _TURN_S)
        notes = f"turns of {_TURN_S:g} s, {_CALLERS} connections, MiniLM {ours.dtype}"
    medians = Medians(NAME, plan.repeats, notes, _BOUNDS)
    return [
        *usual(found, medians),
        ratio(medians, found, "over_vllm", ("http", "vllm")),
        ratio(medians, found, "p99_over_vllm", ("http", "vllm"), "p99_s"),
        ratio(medians, found, "over_grpc", ("http", "grpc")),
        *unary_cpu.measure_http(plan, NAME),
    ]
