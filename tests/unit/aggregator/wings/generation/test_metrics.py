"""Generations in metrics, by the conventions for generative AI."""

from __future__ import annotations

from aggregator.wings.generation.generation import Generation
from aggregator.wings.generation.metrics import GenerationMetrics
from k8s.pod.metrics_buffer import MetricsBuffer
from protos.generation.v1.generation_pb2 import Sampling
from tests.unit.aggregator.observability.test_metrics import points


def test_a_generation_shows_its_tokens_duration_and_time_between_tokens() -> None:
    buffer = MetricsBuffer()
    generation = Generation(Sampling(), first_token_s=11.0)
    generation.prompt_ids = bytes(4 * 3)
    generation.token_ids.extend([1, 2, 3, 4, 5])
    GenerationMetrics(buffer).generated("m", generation, total_s=3.0, received_s=10.0, failure=None)
    shown = points(buffer)
    assert {point.attributes["gen_ai.token.type"]: point.sum for point in shown["gen_ai.client.token.usage"]} == {
        "input": 3,
        "output": 5,
    }
    assert shown["gen_ai.server.request.duration"][0].sum == 3.0
    assert shown["gen_ai.server.time_to_first_token"][0].sum == 1.0
    assert shown["gen_ai.server.time_per_output_token"][0].sum == 0.5
