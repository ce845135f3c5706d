"""What a server that generates says of itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from aggregator.model_server import ServerDescription, differences
from aggregator.replicas.answers import BadDescription
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.work_item import Task
from aggregator.wings.generation.costs import GenerationCosts
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_engine import description
from tests.support.fake_model_server import describe_response
from tests.unit.aggregator.replicas.test_answers import checked

GENERATION = pb.GenerationProfile(
    fixed_s=0.01, per_sequence_s=0.001, per_token_s=0.0001, kv_tokens=4096, max_sequences=8, context_tokens=900
)


def test_a_server_of_both_tasks_is_described_once_for_each() -> None:
    said = describe_response(tasks=["embed", "generate"], generation=GENERATION, matryoshka_dimensions=[4])
    found = checked(said)
    assert not isinstance(found.details, GenerationCosts)
    assert [*found.by_task] == [Task.EMBED, Task.GENERATE]
    alone = checked(describe_response(task="embed", matryoshka_dimensions=[4]))
    assert replace(found, beside=None) == alone
    assert found.by_task[Task.GENERATE].matryoshka_dimensions == frozenset()
    generates = found.by_task[Task.GENERATE]
    assert isinstance(costs := generates.details, GenerationCosts)
    assert (costs.kv_tokens, generates.max_input_tokens, generates.step_query_capacity) == (4096, 900, 8)
    assert (generates.address, generates.dimensions, generates.by_task) == ("a:1", 0, {Task.GENERATE: generates})


def generates(**profile: float) -> ServerDescription:
    said = describe_response(task="generate", generation=GENERATION)
    for name, value in profile.items():
        setattr(said.generation, name, value)
    return checked(said)


@pytest.mark.parametrize(
    ("fixed_s", "per_token_s", "budget"),
    [(2**-6, 2**-10, 9 * 16), (2**-6, 0.0, 8192), (1.0, 2**-10, 8192), (0.0, 2**-10, 1)],
)
def test_a_batch_of_prompts_takes_nine_times_a_steps_fixed_time(
    fixed_s: float, per_token_s: float, budget: int
) -> None:
    curve = Curve(0.0, fixed_s, per_token_s, budget, Rule.THROUGHPUT, 8192)
    assert generates(fixed_s=fixed_s, per_token_s=per_token_s).curve == curve


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"fixed_s": math.inf}, "gives steps no time"),
        ({"per_token_s": -1.0}, "gives steps no time"),
        ({"fixed_s": 0.0, "per_sequence_s": 0.0, "per_token_s": 0.0}, "gives steps no time"),
        ({"kv_tokens": 0}, "no kv_tokens or no max_sequences"),
        ({"max_sequences": 0}, "no kv_tokens or no max_sequences"),
    ],
)
def test_a_generation_profile_that_no_step_could_follow_is_refused(profile: dict[str, float], words: str) -> None:
    with pytest.raises(BadDescription, match=words):
        generates(**profile)


@pytest.mark.parametrize(("task", "tasks"), [("generate", []), ("embed", ["generate"])])
def test_the_tasks_count_and_without_them_the_task(task: str, tasks: list[str]) -> None:
    said = describe_response(task=task, tasks=tasks, generation=GENERATION, dimensions=0)
    assert [*checked(said).by_task] == [Task.GENERATE]


def test_servers_of_different_tasks_share_the_tokenizer_and_no_more() -> None:
    both = checked(describe_response(tasks=["embed", "generate"], generation=GENERATION))
    generates = both.by_task[Task.GENERATE]
    assert differences(both, generates) == []
    assert differences(both, replace(generates, tokenizer_fingerprint="other"))
    assert differences(generates, replace(generates, max_input_tokens=7))


def test_servers_that_generate_agree_in_their_context() -> None:
    costs = GenerationCosts(0.01, 0.001, 0.0001, 4096, 8)
    one, other = description(details=costs), description(details=costs, max_input_tokens=512)
    assert differences(one, other) == ["max_input_tokens 256, not 512"]
