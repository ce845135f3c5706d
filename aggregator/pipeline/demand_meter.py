"""Meter the demand of each model, and what its model servers can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Model, Models
from aggregator.errors import UnknownModel
from aggregator.request.request import KAFKA, Request, Source
from aggregator.scheduler.rates import ArrivalPolicy, Arrivals
from aggregator.scheduler.work_item import Task
from protos.aggregator.v1 import aggregator_pb2 as pb

_RECENT_TOKENS = 1_000_000.0
"""After this many tokens the earlier ones count half in the shares of the tasks."""


class DemandMeter:
    """Arrivals by model and source; the pipeline calls `arrived`, then `counted`."""

    def __init__(
        self,
        models: Models,
        *,
        policy: ArrivalPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._clock = clock
        self._policy = policy or ArrivalPolicy()
        self._started_s = clock()
        self._tokens = {(model.name, task): 0.0 for model in models for task in Task}
        self._arrivals: dict[tuple[str, str], Arrivals] = {}
        self.sources: Sequence[Source] = ()
        """Those that may say what their demand is instead."""

    def arrived(self, source: str, requests: Sequence[Request]) -> None:
        inputs: dict[str, int] = {}
        for request in requests:
            inputs[request.model] = inputs.get(request.model, 0) + len(request.inputs)
        now_s = self._clock()
        for name, count in inputs.items():
            try:
                model = self._models.find(name)
            except UnknownModel:
                continue  # no replica serves it
            self._of(model.name, source).arrived(count, now_s)

    def counted(self, model: Model, requests: Sequence[Request]) -> None:
        """The tokens of these requests are counted; refused ones are left out."""
        sums: dict[str, list[int]] = {}
        for request in requests:
            if request.held is not None:
                self._tokens[model.name, request.task] += request.token_count
                of_source = sums.setdefault(request.source.name, [0, 0, 0])
                of_source[0] += 1
                of_source[1] += len(request.inputs)
                of_source[2] += request.token_count
        for source, (requests_held, inputs_held, tokens_held) in sums.items():
            self._of(model.name, source).counted(requests_held, inputs_held, tokens_held)

        if sum(self._tokens[model.name, task] for task in Task) > _RECENT_TOKENS:
            for task in Task:
                self._tokens[model.name, task] /= 2

    def totals(self) -> tuple[int, int]:
        """Inputs that arrived since the start, refused or not, and the tokens of admitted inputs."""
        arrivals = self._arrivals.values()
        return sum(each.total_inputs for each in arrivals), sum(each.total_tokens for each in arrivals)

    def tokens_per_record(self, name: str, source: str = KAFKA) -> float:
        """Mean tokens of a source's requests for this model."""
        return self._of(self._models.find(name).name, source).tokens_per_request

    def _of(self, model: str, source: str) -> Arrivals:
        arrivals = self._arrivals.get((model, source))
        if arrivals is None:
            arrivals = self._arrivals[model, source] = Arrivals(self._policy, self._started_s)
        return arrivals

    def of(self, model: Model) -> pb.ModelDemand:
        """The present demand and replicas of one model; all its tasks are counted in tokens, each server once."""
        now_s = self._clock()
        revisions = model.revisions
        slos = [model_revision.slo for model_revision in revisions if model_revision.slo is not None]
        kafka = self._of(model.name, KAFKA)
        paced = {source.name: found for source in self.sources if (found := source.paced(model.name)) is not None}
        others = [
            each
            for (name, source), each in self._arrivals.items()
            if name == model.name and source != KAFKA and source not in paced
        ]
        return pb.ModelDemand(
            model=model.name,
            other_tokens_per_s=sum(each.tokens_per_s(now_s) for each in others)
            + sum(each.tokens_per_s for each in paced.values()),
            kafka_tokens_per_s=kafka.tokens_per_s(now_s),
            held_tokens=max(0, model.admission.total - int(sum(each.held_tokens for each in paced.values()))),
            tokens_per_record=kafka.tokens_per_request,
            replicas=_replicas(revisions),
            p99_s=max((slo.p99_s for slo in slos), default=0.0),
            slo_s=max((slo.goal_s for slo in slos), default=0.0),
            pending_requests=sum(len(served.pending) for served in model.tasks.values()),
            kv_token_s_per_token=self._kv_token_s_per_token(model),
        )

    def _kv_token_s_per_token(self, model: Model) -> float:
        """KV-cache occupancy (tokens × seconds) per arriving token of any task."""
        held = 0.0
        for task, served in model.tasks.items():
            each = max((revision.usage.kv_token_s_per_token for revision in served.revisions.values()), default=0.0)
            held += each * self._tokens[model.name, task]
        return held / sum(self._tokens[model.name, task] for task in Task) if held else 0.0


def _replicas(revisions: Sequence[ModelRevision]) -> list[pb.Replica]:
    """Each server once: a server of both tasks with its throughput of embeddings, and its KV cache."""
    found: dict[str, pb.Replica] = {}
    for model_revision in revisions:
        for replica in model_revision.dispatcher.replicas.in_use.values():
            token_budget, step_time_s = replica.pod_step()
            controller = replica.budget_controller
            reported = found.setdefault(
                replica.name,
                pb.Replica(
                    address=replica.name,
                    token_budget=token_budget,
                    step_time_s=step_time_s,
                    budget_at_floor=controller is not None and controller.at_floor,
                ),
            )
            if replica.kv_tokens:
                reported.kv_tokens = replica.kv_tokens
    return list(found.values())
