"""Which servers embed in the steps of generation."""

from __future__ import annotations

from aggregator.admission.models import Budget
from aggregator.model_server import ModelServer, ServerDescription
from aggregator.scheduler.replica import Replica, ReplicaPolicy
from aggregator.wings.both.replica import MixedReplica


def mixed(server: ModelServer, description: ServerDescription, budget: Budget, policy: ReplicaPolicy) -> Replica | None:
    """A server that also generates, as the queue of its embeddings sees it; None for other servers."""
    per_sequence_s = description.beside.details.sequence_s if description.beside is not None else None
    if per_sequence_s is None:
        return None
    return MixedReplica(
        description.address,
        description.curve,
        budget.tokens,
        policy,
        budget.controller,
        capacity=budget.of_backlog,
        per_sequence_s=per_sequence_s,
        load=lambda: server.load,
    )
