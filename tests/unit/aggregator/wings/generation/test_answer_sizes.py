"""The size of a text's answer is known before it is generated."""

from __future__ import annotations

from aggregator.sources.wire.encode import answer_bytes
from aggregator.wings.generation.generation import Generation
from aggregator.wings.generation.kind import GENERATION
from protos.generation.v1.generation_pb2 import Sampling
from tests.support.fake_source import any_request
from tests.support.fake_tokenizer import Pieces


def test_a_text_is_as_long_as_it_may_get() -> None:
    sizes = [
        answer_bytes(any_request("a", kind=GENERATION, details=Generation(sampling)), 0)
        for sampling in (Sampling(max_tokens=100), Sampling(max_tokens=100, logprobs=5), Sampling())
    ]
    assert sizes[0] < sizes[1] < 60_000
    assert sizes[2] > 16_000


def test_a_text_holds_no_more_than_the_models_context_has_room_for() -> None:
    generation = Generation(Sampling(max_tokens=1_000_000))
    request = any_request("a", kind=GENERATION, details=generation)
    assert answer_bytes(request, 0) > 16_000_000
    generation.begin("r1", bytes(4 * 24), Pieces(str), context_tokens=2048)
    assert generation.left_tokens == 2024
    assert answer_bytes(request, 0) < 40_000
    generation.extend([5] * 2023, [])
    assert generation.left_tokens == 1
    assert Generation(Sampling(), context_tokens=2048).left_tokens == 0
