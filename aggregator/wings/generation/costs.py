"""What a server that generates says of its steps, and what a revision's texts hold on average."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from typing_extensions import override

from aggregator.model_server import Details, ServerDescription, Usage
from aggregator.replicas.answers import BadDescription
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.replica import Replica, ReplicaPolicy
from aggregator.scheduler.work_item import Task
from aggregator.wings.generation.generation import Generation
from aggregator.wings.generation.replica import LENGTH_SHARE, GeneratingReplica, MeanLength
from aggregator.wings.generation.server import TASK
from protos.modelserver.v1 import modelserver_pb2 as pb


@dataclass(frozen=True, slots=True)
class GenerationCosts(Details):
    """The cost of a step on a server that generates, in seconds, and its capacity.

    A step takes `fixed_s`, plus `per_sequence_s` for each sequence that decodes, plus `per_token_s` for each
    prompt token.
    """

    task: ClassVar[Task] = TASK
    agreed: ClassVar[tuple[str, ...]] = ("max_input_tokens",)
    is_vectors: ClassVar[bool] = False
    is_repeatable: ClassVar[bool] = False  # equal prompts may get different texts
    meets_goal: ClassVar[bool] = False

    fixed_s: float
    per_sequence_s: float
    per_token_s: float
    kv_tokens: int
    max_sequences: int

    @property
    @override
    def sequence_s(self) -> float | None:
        return self.per_sequence_s

    @override
    def policy(self, policy: DispatchPolicy) -> DispatchPolicy:
        return replace(policy, queue=replace(policy.queue, coalesce=False), by_prefix=True)

    @override
    def usage(self) -> Lengths:
        return Lengths(self)

    @override
    def replica(self, description: ServerDescription, budget: int, policy: ReplicaPolicy, usage: Usage) -> Replica:
        return GeneratingReplica(
            description.address,
            description.curve,
            budget,
            policy,
            kv_tokens=self.kv_tokens,
            max_sequences=self.max_sequences,
            length=usage.length if isinstance(usage, Lengths) else None,
            per_sequence_s=self.per_sequence_s,
            capacity=description.step_token_capacity,
        )


class Lengths(Usage):
    """How long a revision's texts get, and what they hold of the KV cache."""

    def __init__(self, costs: GenerationCosts) -> None:
        self.length = MeanLength()
        self._costs = costs
        self._kv_token_s = self._demanded_tokens = 0.0

    def finished(self, generation: Generation, taken_s: float) -> None:
        """A generation ended after `taken_s`; on average it held its prompt and half of its new tokens."""
        prompt_tokens, new_tokens = generation.prompt_tokens, len(generation.token_ids)
        demanded = prompt_tokens + self.expected_tokens(generation)
        self.length.observe(new_tokens)
        self._kv_token_s += LENGTH_SHARE * ((prompt_tokens + new_tokens / 2) * taken_s - self._kv_token_s)
        self._demanded_tokens += LENGTH_SHARE * (demanded - self._demanded_tokens)

    @property
    @override
    def kv_token_s_per_token(self) -> float:
        return self._kv_token_s / self._demanded_tokens if self._demanded_tokens else 0.0

    @override
    def expected_tokens(self, details: object) -> int:
        """The number of prompt tokens that would take as long as the generation's expected new tokens."""
        costs = self._costs
        assert isinstance(details, Generation), "A request without a generation was to be generated. This is a bug."
        if not costs.per_token_s:
            return 0
        expected = min(self.length.new_tokens, details.sampling.max_tokens or inf)
        each_s = costs.per_sequence_s + costs.fixed_s / costs.max_sequences
        return int(expected * each_s / costs.per_token_s)


def costs_of(said: pb.DescribeResponse) -> GenerationCosts:
    profile = said.generation
    times = (profile.fixed_s, profile.per_sequence_s, profile.per_token_s)
    if any(not 0.0 <= seconds < math.inf for seconds in times) or not any(times):
        raise BadDescription("it generates, but its generation profile gives steps no time")
    if not profile.kv_tokens or not profile.max_sequences:
        raise BadDescription("it generates, but its generation profile has no kv_tokens or no max_sequences")
    return GenerationCosts(*times, profile.kv_tokens, profile.max_sequences)


_WORTHWHILE = 9.0
"""A step of prompts is long enough when its tokens take this many times its fixed time."""


def prompt_curve(generation: GenerationCosts, capacity: int) -> Curve:
    enough = _WORTHWHILE * generation.fixed_s / generation.per_token_s if generation.per_token_s > 0.0 else capacity
    budget = max(1, min(capacity, int(enough)))
    return Curve(0.0, generation.fixed_s, generation.per_token_s, budget, Rule.THROUGHPUT, capacity)
