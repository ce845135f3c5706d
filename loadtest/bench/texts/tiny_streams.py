"""P7: 64 texts at a time of a model whose computation is next to nothing: what all around it costs."""

from __future__ import annotations

from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan
from loadtest.bench.texts.beside_vllm import STREAMS, measured
from loadtest.bench.texts.sides import Load, tiny_model

NAME = "P7"
_LOADS = {"": Load(STREAMS, 4 * STREAMS, 64), "_whole": Load(STREAMS, 4 * STREAMS, 64, whole=True)}
BOUNDS = {
    "tokens_over_vllm": "≥ 1.3",
    "first_p99_over_vllm": "≤ 1.0",
    "between_p99_over_vllm": "≤ 1.0",
    "cpu_over_vllm": "≤ 0.6",
    "whole_ours_front_cpu": "≤ 5",
}


def measure(plan: Plan) -> list[Figure]:
    """Streamed, and each text in one message."""
    return measured(plan, NAME, tiny_model(plan), _LOADS, BOUNDS)
