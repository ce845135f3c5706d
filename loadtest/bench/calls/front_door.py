"""P1: 1, 64 and 256 callers, one query a call, beside what users run today, in turns; and how good the vectors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from loadtest.bench import peers
from loadtest.bench.callers import Load, Turn
from loadtest.bench.figures import Figure
from loadtest.bench.quality import quality
from loadtest.bench.setting import Plan
from loadtest.bench.sides import Side, both_sides, paused, ratio, timed, usual
from loadtest.bench.turns import Medians

NAME = "P1"
CALLERS = (1, 64, 256)
_TURN_S = 6.0
PEERS = {
    "vllm": "vLLM's server, tuned as ours",
    "vllm_servers": "the same, an API server a core",
    "vllm_stock": "vLLM's server, stock",
    "infinity": "Infinity",
    "fastapi": "sentence-transformers (torch)",
    "onnx": "sentence-transformers (ONNX int8)",
    "openvino": "sentence-transformers (OpenVINO int8)",
    "llama": "llama-cpp-python",
}
_BOUNDS = {
    **{
        f"over_{peer}_{callers}": bound
        for peer, bound in (("vllm", "≥ 2.2"), ("vllm_stock", "≥ 16"))
        for callers in CALLERS[1:]
    },
    "p99_over_vllm_64": "≤ 1.0",
}
_STREAM = "ours_64_stream"
_LISTS = Load(4, 32)


def measure(plan: Plan) -> list[Figure]:
    """All in turns, on the same machine with the client; peers are stopped between their turns."""
    with both_sides(plan) as (ours, vllm), ExitStack() as stack:
        sides: dict[str, Side] = {"ours": ours, "vllm": vllm}
        for name, peer in (
            ("vllm_servers", peers.vllm_embeddings(plan.folder, ours.dtype, several=True)),
            ("vllm_stock", peers.vllm_stock(plan.folder)),
            ("infinity", peers.infinity(plan.folder, ours.dtype)),
            ("fastapi", peers.fastapi(plan.folder, ours.dtype)),
            ("onnx", peers.fastapi_onnx(plan.folder)),
            ("openvino", peers.fastapi_openvino(plan.folder)),
            ("llama", peers.llama(plan.folder)),
            ("tei", peers.tei(plan.folder)),
        ):
            if peer:
                sides[name] = stack.enter_context(paused(stack.enter_context(peer)))
        kinds = {f"{name}_{callers}": (side, Load(callers)) for callers in CALLERS for name, side in sides.items()}
        kinds |= {f"http_{callers}": (ours, Load(callers, http=True)) for callers in CALLERS}
        kinds[_STREAM] = (ours, Load(CALLERS[1], stream=True))
        kinds |= {f"{name}_lists": (sides[name], _LISTS) for name in ("ours", "vllm")}
        found = timed(NAME, plan, kinds, _TURN_S)
        notes = f"turns of {_TURN_S:g} s, MiniLM {ours.dtype} (stock: its own choice)"
        return [*figures(found, plan.repeats, notes), *quality(NAME, plan, sides)]


def figures(found: Mapping[str, Sequence[Turn]], repeats: int, notes: str) -> list[Figure]:
    """Medians of each kind's turns, and of the ratios turn by turn."""
    medians = Medians(NAME, repeats, notes, _BOUNDS)
    return [
        *usual(found, medians),
        *(
            ratio(medians, found, f"over_{peer}_{callers}", (f"ours_{callers}", f"{peer}_{callers}"))
            for callers in CALLERS
            for peer in (*PEERS, "tei")
            if f"{peer}_{callers}" in found
        ),
        ratio(medians, found, "p99_over_vllm_64", ("ours_64", "vllm_64"), "p99_s"),
        ratio(medians, found, "stream_over_calls", (_STREAM, "ours_64")),
        ratio(medians, found, "lists_over_vllm", ("ours_lists", "vllm_lists")),
    ]
