"""A model server that embeds and generates in the same steps, as its embeddings' queue sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Protocol

from typing_extensions import override

from aggregator.scheduler.budget import BudgetController
from aggregator.scheduler.curve import Curve
from aggregator.scheduler.replica import BatchOut, Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.work_item import Priority


class Load(Protocol):
    """A server's load after a step of generation."""

    @property
    def embed_room_tokens(self) -> int | None: ...

    @property
    def running(self) -> int: ...


def _unknown() -> Load | None:
    return None


class MixedReplica(Replica):
    """Its batches fit what the server's decoding leaves of a step, and each step takes the decoding's time too.

    While sequences decode, one step follows the other whether a batch waits or not. So a batch is sent soon and
    shares the next step with earlier batches, up to the room of one step.

    The room and the decoding sequences are those that the server reported last. Its curve stays that of steps that only
    embed. A batch that does not fit takes several steps, and an isolated batch runs in a separate step. So no
    time-out is shorter than `first_timeout_s`.
    """

    def __init__(
        self,
        name: str,
        curve: Curve | None,
        token_budget: int,
        policy: ReplicaPolicy,
        budget_controller: BudgetController | None = None,
        *,
        capacity: int = 0,
        per_sequence_s: float = 0.0,
        load: Callable[[], Load | None] = _unknown,
    ) -> None:
        """`per_sequence_s`: the seconds that each decoding sequence adds to a step. `load`: after the last step."""
        self._per_sequence_s = per_sequence_s
        self._room_tokens: int | None = None
        self._decoding = 0
        self._load = load
        self._seen: Load | None = None
        super().__init__(name, curve, token_budget, policy, budget_controller, capacity=capacity)

    def observe_room(self, room_tokens: int | None, decoding: int) -> None:
        """Note the tokens of embeddings that the next step holds (None: not known), beside `decoding` sequences."""
        self._room_tokens, self._decoding = room_tokens, decoding
        self._follow_budget()

    @override
    def due_s(self, now_s: float, priority: Priority = Priority.BACKGROUND, share_tokens: float = inf) -> float:
        load = self._load()
        if load is not self._seen:
            self._seen = load
            if load is not None and load.embed_room_tokens is not None:
                self.observe_room(load.embed_room_tokens, load.running)
        return super().due_s(now_s, priority, share_tokens)

    @override
    def free_s(self, now_s: float, priority: Priority = Priority.BACKGROUND) -> float:
        if not self._steps_follow or self._out[0].end_s < now_s:
            return super().free_s(now_s, priority)
        return max(now_s, self.not_before_s)

    @override
    def _joins(self, priority: Priority) -> bool:
        return self._steps_follow or super()._joins(priority)

    @property
    def _steps_follow(self) -> bool:
        """Whether another batch shares the next step with the batches in flight, because sequences decode."""
        return self._decoding > 0 and 0 < self.tokens_out < self.token_budget

    @override
    def step_time_s(self, tokens: int) -> float:
        return super().step_time_s(tokens) + self._per_sequence_s * self._decoding

    @override
    def pod_step(self) -> tuple[int, float]:
        return self._allowed, super().step_time_s(self._allowed)

    @override
    def _least_timeout_s(self) -> float:
        return self._policy.first_timeout_s

    @override
    def _learn(self, out: BatchOut, report: StepReport, now_s: float) -> None:
        super()._learn(out, report, now_s)
        self._sharing = 0.0  # prompts in a step are not another aggregator's batches
        self.observe_room(report.embed_room_tokens, report.decoding_sequences)

    @override
    def _learn_step(self, report: StepReport) -> None:
        decoding_s = self._per_sequence_s * report.decoding_sequences
        super()._learn_step(replace(report, step_duration_s=max(0.0, report.step_duration_s - decoding_s)))

    @override
    def _follow_budget(self) -> None:
        super()._follow_budget()
        self._allowed = self.token_budget
        if self._room_tokens is not None:
            room_tokens = max(1, self._room_tokens)
            self.token_budget, self.largest = min(self.token_budget, room_tokens), min(self.largest, room_tokens)
