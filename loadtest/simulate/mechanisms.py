"""The aggregator's core with some of its mechanisms switched off, to see what each is worth.

Production has no such switches: each mechanism is replaced here, by a policy's value that turns it off where there is
one, else by a part that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import StrEnum
from math import inf

from typing_extensions import override

from aggregator.scheduler.budget.controller import Steering
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.replica import LightLead, Replica, ReplicaPolicy
from aggregator.scheduler.replica_choice import ActiveReplicas
from protos.modelserver.v1.curve import Curve


class Mechanism(StrEnum):
    """What the core does besides sending what waits to the model server that is free first."""

    SUBSETS = "subsets"  # of more than 32 model servers, as many are used as there is work for (ADR 14)
    PACING = "pacing"  # batches that are not full keep their distance in time (ADR 11)
    HALF_BATCHES = "half-batches"  # where others send too, batches are cut so that two fit one step (ADR 11)
    LIGHT_LEAD = "light-lead"  # while all that waits fits one batch, it is staged later (ADR 9)
    LARGE_STEPS = "large-steps"  # of a backlog, more is cut than a batch usually holds (ADR 15)
    SKIPPING = "skipping"  # a slow server that is idle is skipped while others would finish sooner (ADR 4)


ReplicaMaker = Callable[..., Replica]


def policy_without(off: AbstractSet[Mechanism], policy: DispatchPolicy) -> DispatchPolicy:
    """The policy with values that turn off those mechanisms which have one."""
    if Mechanism.PACING in off:
        policy = replace(policy, paced=False)
    if Mechanism.HALF_BATCHES in off:
        policy = replace(policy, replica=replace(policy.replica, shared_from=inf))
    return policy


def replicas_without(off: AbstractSet[Mechanism]) -> ReplicaMaker:
    """What makes replicas that lack these mechanisms."""
    kind = _NeverSkipped if Mechanism.SKIPPING in off else Replica

    def make(
        name: str, curve: Curve, token_budget: int, policy: ReplicaPolicy, steering: Steering | None, *, capacity: int
    ) -> Replica:
        most = 0 if Mechanism.LARGE_STEPS in off else capacity
        replica = kind(name, curve, token_budget, policy, steering, capacity=most)
        if Mechanism.LIGHT_LEAD in off:
            replica.light_lead = _NeverShorter(inf, 0.0)
        return replica

    return make


def active_replicas_without(off: AbstractSet[Mechanism], name: str) -> ActiveReplicas:
    """The replicas of one dispatcher: with no subsets, all in use."""
    return _AllInUse(name) if Mechanism.SUBSETS in off else ActiveReplicas(name)


class _NeverSkipped(Replica):
    """A replica that nobody waits for."""

    @override
    def finishes_by(self, by_s: float, tokens: int, now_s: float) -> int:
        return 0


class _NeverShorter(LightLead):
    """A second lead that stays longer than the first."""

    @override
    def observe(self, lead_s: float, idle_s: float, staged_s: float) -> None:
        pass


class _AllInUse(ActiveReplicas):
    """Replicas that are never spare."""

    @override
    def __setitem__(self, name: str, replica: Replica) -> None:
        super().__setitem__(name, replica)
        while self.widen():
            pass

    @override
    def returned(self, replica: Replica) -> None:
        pass
