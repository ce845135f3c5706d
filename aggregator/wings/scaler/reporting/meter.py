"""Meter the demand of each model, and what its model servers can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from typing_extensions import override

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Model, Models
from aggregator.errors import UnknownModel
from aggregator.pipeline.demand import Demand, Terms
from aggregator.request.request import KAFKA, Backlog, Backlogs, Request
from aggregator.scheduler.rates import BusyShare
from aggregator.scheduler.work_item import Task
from aggregator.wings.scaler.measuring.required_replicas import (
    DRAIN_S,
    UTILISATION,
    backlog_tokens,
    memory_pods,
    pod_throughput,
    required_replicas,
)
from aggregator.wings.scaler.reporting.arrivals import ArrivalPolicy, Arrivals
from aggregator.wings.scaler.reporting.server import DemandServer
from protos.aggregator.v1 import aggregator_pb2 as pb

_RECENT_TOKENS = 1_000_000.0
"""After this many tokens the earlier ones count half in the shares of the tasks."""


class DemandMeter(Demand):
    """Arrivals by model and source."""

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.monotonic,
        *,
        policy: ArrivalPolicy | None = None,
    ) -> None:
        self._models = models
        self._clock = clock
        self._policy = policy or ArrivalPolicy()
        self._started_s = clock()
        self._tokens = {(model.name, task): 0.0 for model in models for task in Task}
        self._arrivals: dict[tuple[str, str], Arrivals] = {}
        self._server: DemandServer | None = None

    @override
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

    @override
    def counted(self, model: Model, requests: Sequence[Request]) -> None:
        sums: dict[str, list[int]] = {}
        for request in requests:
            if request.held is not None:
                self._tokens[model.name, request.kind.task] += request.token_count
                of_source = sums.setdefault(request.source.name, [0, 0, 0])
                of_source[0] += 1
                of_source[1] += len(request.inputs)
                of_source[2] += request.token_count
        for source, (requests_held, inputs_held, tokens_held) in sums.items():
            self._of(model.name, source).counted(requests_held, inputs_held, tokens_held)

        if sum(self._tokens[model.name, task] for task in Task) > _RECENT_TOKENS:
            for task in Task:
                self._tokens[model.name, task] /= 2

    @override
    def totals(self) -> tuple[int, int]:
        arrivals = self._arrivals.values()
        return sum(each.total_inputs for each in arrivals), sum(each.total_tokens for each in arrivals)

    @override
    def tokens_per_record(self, name: str, source: str = KAFKA) -> float:
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

    @override
    def terms(self, model: Model) -> Terms:
        """The scaler's formula, with the scaler's defaults."""
        demand = self.of(model)
        arriving = demand.other_tokens_per_s + demand.kafka_tokens_per_s
        unread = sum(each.records for each in self._backlogs()) if len(list(self._models)) == 1 else 0
        backlog = backlog_tokens(unread + demand.pending_requests, demand.tokens_per_record, demand.held_tokens)
        pod = pod_throughput((each.token_budget, each.step_time_s) for each in demand.replicas if each.step_time_s)
        kv_tokens = max((each.kv_tokens for each in demand.replicas), default=0)
        in_memory = memory_pods(arriving, demand.kv_token_s_per_token, kv_tokens)
        required = None
        if pod is not None:
            required = required_replicas(
                arriving, backlog, pod, drain_s=DRAIN_S, utilisation=UTILISATION, in_memory=in_memory
            )
        return Terms(arriving, backlog, pod, in_memory, required)

    def _kv_token_s_per_token(self, model: Model) -> float:
        """KV-cache occupancy (tokens × seconds) per arriving token of any task."""
        held = 0.0
        for task, served in model.tasks.items():
            each = max((revision.usage.kv_token_s_per_token for revision in served.revisions.values()), default=0.0)
            held += each * self._tokens[model.name, task]
        return held / sum(self._tokens[model.name, task] for task in Task) if held else 0.0

    @override
    async def start(self, bind: str) -> str:
        self._server = DemandServer(bind, DemandReport(self._models, self, self._backlogs))
        await self._server.start()
        return self._server.address

    @override
    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def _backlogs(self) -> list[Backlog]:
        return [each for source in self.sources for each in source.backlogs()]


class DemandReport:
    """The report for the scaler; to be made on the event loop."""

    def __init__(
        self,
        models: Models,
        meter: DemandMeter,
        backlogs: Backlogs = list,
    ) -> None:
        self._models = models
        self._meter = meter
        self._backlogs = backlogs
        self._busy = BusyShare()

    def __call__(self) -> pb.GetDemandResponse:
        backlogs = self._backlogs()
        return pb.GetDemandResponse(
            busy_share=self._busy.observe(time.monotonic(), time.thread_time()),
            models=[self._meter.of(model) for model in self._models],
            partitions=[
                pb.Partition(topic=each.topic, partition=each.partition, fetch_position=each.position, model=each.model)
                for each in backlogs
                if isinstance(each.partition, int)
            ],
            streams=[
                pb.Stream(
                    stream=each.topic,
                    model=each.model,
                    waiting_entries=each.records,
                    tokens_per_entry=self._meter.tokens_per_record(each.model, each.source),
                )
                for each in backlogs
                if not isinstance(each.partition, int)
            ],
        )


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
