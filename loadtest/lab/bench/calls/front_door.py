"""P1: 1, 64 and 256 callers, one query a call, beside what users run today, in turns; and how good the vectors are.

Embeddings are compared with those of sentence-transformers in float32: the mean cosine, and for questions asked of the
others the share of the ten nearest that are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from loadtest.lab.bench import peers
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.setting import Plan, texts
from loadtest.lab.bench.sides import Load, OpenAI, Side, Turn, both_sides, paused, ratio, timed, usual
from loadtest.lab.bench.turns import Medians

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
_ASKED, _TEXTS, _NEAREST = 500, 3000, 10


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
        return [*figures(found, plan.repeats, notes), *_quality(plan, sides)]


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


def _quality(plan: Plan, sides: Mapping[str, Side]) -> list[Figure]:
    asked = texts(round(_TEXTS * min(1.0, plan.turn_share)))
    with peers.fastapi(plan.folder, "float32") as exact:
        wanted = _normalized(OpenAI(exact).embeddings(asked))
    nearest = _nearest(wanted)
    medians = Medians(NAME, 1, f"beside float32, {len(asked)} questions, of which {len(nearest)} are asked")
    figures: list[Figure] = []
    for name, side in sides.items():
        found = _normalized(side.embeddings(asked))
        same = [len(set(one) & set(other)) / _NEAREST for one, other in zip(_nearest(found), nearest, strict=True)]
        cosine = float(np.mean(np.sum(found * wanted, axis=1)))
        figures += [
            medians.of(f"{name}_cosine", "cosine", [cosine]),
            medians.of(f"{name}_same_nearest", "share", [float(np.mean(same))]),
        ]
    return figures


def _nearest(embeddings: NDArray[np.float32]) -> list[list[int]]:
    """Of each question that is asked the ten others that are nearest to it."""
    scores = embeddings[:_ASKED] @ embeddings.T
    np.fill_diagonal(scores, -np.inf)
    rows: list[list[int]] = np.argsort(-scores, axis=1)[:, :_NEAREST].tolist()
    return rows


def _normalized(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / lengths
