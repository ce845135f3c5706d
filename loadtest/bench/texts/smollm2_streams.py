"""P8: 64 texts at a time of SmolLM2: no slower than vLLM's own server, though there is one more hop."""

from __future__ import annotations

from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan
from loadtest.bench.texts.beside_vllm import STREAMS, measured
from loadtest.bench.texts.sides import Load
from loadtest.texts.smollm2 import smollm2

NAME = "P8"
_LOADS = {"": Load(STREAMS, 2 * STREAMS, 8)}
_BOUNDS = {"tokens_over_vllm": "≥ 1.0", "first_p99_over_vllm": "≤ 1.0", "between_p99_over_vllm": "≤ 1.0"}


def measure(plan: Plan) -> list[Figure]:
    """Streamed, on one thread that computes."""
    return measured(plan, NAME, smollm2(), _LOADS, _BOUNDS)
