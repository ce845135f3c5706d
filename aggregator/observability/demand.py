"""Report the demand for the model servers and their capacity to the scaler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Model, Models
from aggregator.errors import UnknownModel
from aggregator.request import Request
from aggregator.scheduler.generating_replica import GeneratingReplica
from aggregator.scheduler.rates import ArrivalPolicy, Arrivals, BusyShare
from aggregator.sources.source import GRPC, KAFKA
from protos.aggregator.v1 import aggregator_pb2 as pb


class Positions(Protocol):
    """The positions of Kafka intake."""

    def positions(self) -> Mapping[tuple[str, int], int]:
        """The next offset of each assigned partition (topic, number)."""
        ...


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
        started_s = clock()
        self._arrivals = {
            (model.name, source): Arrivals(policy or ArrivalPolicy(), started_s)
            for model in models
            for source in (KAFKA, GRPC)
        }

    def arrived(self, source: str, requests: Sequence[Request]) -> None:
        """Requests arrived from a source, refused or not; called once for each."""
        inputs: dict[str, int] = {}
        for request in requests:
            inputs[request.model] = inputs.get(request.model, 0) + len(request.inputs)
        now_s = self._clock()
        for name, count in inputs.items():
            try:
                model = self._models.find(name)
            except UnknownModel:
                continue  # no replica serves it
            self._arrivals[model.name, source].arrived(count, now_s)

    def counted(self, model: Model, requests: Sequence[Request]) -> None:
        """The tokens of these requests are counted; refused ones are left out."""
        sums = {source: [0, 0, 0] for source in (KAFKA, GRPC)}
        for request in requests:
            if request.held is not None:
                of_source = sums[request.source.name]
                of_source[0] += 1
                of_source[1] += len(request.inputs)
                of_source[2] += request.token_count
        for source, (requests_held, inputs_held, tokens_held) in sums.items():
            self._arrivals[model.name, source].counted(requests_held, inputs_held, tokens_held)

    def tokens_per_record(self, name: str) -> float:
        """Mean tokens of the Kafka requests for this model."""
        return self._arrivals[self._models.find(name).name, KAFKA].tokens_per_request

    def of(self, model: Model) -> pb.ModelDemand:
        """The present demand and replicas of one model."""
        now_s = self._clock()
        slos = [model_revision.slo for model_revision in model.revisions.values() if model_revision.slo is not None]
        kafka, grpc = (self._arrivals[model.name, source] for source in (KAFKA, GRPC))
        return pb.ModelDemand(
            model=model.name,
            grpc_tokens_per_s=grpc.tokens_per_s(now_s),
            kafka_tokens_per_s=kafka.tokens_per_s(now_s),
            held_tokens=model.admission.total,
            tokens_per_record=kafka.tokens_per_request,
            replicas=[replica for model_revision in model.revisions.values() for replica in _replicas(model_revision)],
            p99_s=max((slo.p99_s for slo in slos), default=0.0),
            slo_s=max((slo.goal.answer_s for slo in slos), default=0.0),
            pending_requests=len(model.pending),
            kv_token_s_per_token=max((each.kv_token_s_per_token for each in model.revisions.values()), default=0.0),
        )


class DemandReport:
    """The report for the scaler; to be made on the event loop."""

    def __init__(
        self, models: Models, meter: DemandMeter, topics: Mapping[str, str], positions: Positions | None
    ) -> None:
        """`topics`: the default model of each topic."""
        self._models = models
        self._meter = meter
        self._topics = topics
        self._positions = positions
        self._busy = BusyShare()

    def __call__(self) -> pb.GetDemandResponse:
        """The present report."""
        return pb.GetDemandResponse(
            busy_share=self._busy.observe(time.monotonic(), time.thread_time()),
            models=[self._meter.of(model) for model in self._models],
            partitions=list(self._partitions()),
        )

    def tokens_per_record(self, topic: str) -> float:
        """Mean tokens of a topic's requests, as if all were for its default model."""
        return self._meter.tokens_per_record(self._topics[topic])

    def _partitions(self) -> Iterator[pb.Partition]:
        if self._positions is None:
            return
        for (topic, number), position in self._positions.positions().items():
            yield pb.Partition(
                topic=topic,
                partition=number,
                fetch_position=position,
                model=self._topics.get(topic, ""),
            )


def _replicas(model_revision: ModelRevision) -> Iterator[pb.Replica]:
    for replica in model_revision.dispatcher.replicas.in_use.values():
        yield pb.Replica(
            address=replica.name,
            token_budget=replica.token_budget,
            step_time_s=replica.step_time_s(replica.token_budget),
            budget_at_floor=replica.budget_controller is not None and replica.budget_controller.at_floor,
            kv_tokens=replica.kv_tokens if isinstance(replica, GeneratingReplica) else 0,
        )
