"""Put the inputs together into one figure per model, with the aggregators' own demand formula."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.scheduler.demand import Demand, DemandPolicy, Load, StaleInputError, backlog_tokens, pod_throughput
from k8s.scaler.aggregators import Answers
from k8s.scaler.kafka_lag import LogEnds, Place
from k8s.scaler.shares import TopicShares
from protos.aggregator.v1 import aggregator_pb2 as pb


@dataclass(frozen=True, slots=True)
class Replicas:
    """A Deployment's pods: asked for, and ready."""

    wanted: int
    ready: int
    measured_s: float


@dataclass(frozen=True, slots=True)
class Figure:
    """What is published of one model, and when the oldest of its inputs was measured.

    `knows_what_for` is false while pods are pending that were asked for before this replica of the scaler looked.
    """

    required_replicas: float
    lag_records: int
    measured_s: float
    knows_what_for: bool = True


class ModelFigures:
    """One model: soft state only, so that any replica of the scaler comes to the same figures from the same inputs."""

    def __init__(
        self,
        name: str,
        shares: TopicShares,
        policy: DemandPolicy,
        *,
        first_tokens_per_record: float,
        arrival_window_s: float,
    ) -> None:
        self._name = name
        self._arrival_window_s = arrival_window_s
        self._shares = shares
        self._demand = Demand(policy)
        self._growth: deque[tuple[float, Mapping[str, int]]] = deque()
        self._tokens_per_record = first_tokens_per_record

    def update(self, answers: Answers, ends: LogEnds, replicas: Replicas | None, now_s: float) -> Figure:
        """The figure at this moment. Raises StaleInputError."""
        models = [model for answer in answers.answers for model in answer.models if model.model == self._name]
        measured_s = min(answers.measured_s, ends.measured_s, replicas.measured_s if replicas else ends.measured_s)
        lengths = [model.tokens_per_record for model in models if model.tokens_per_record > 0]
        if lengths:
            self._tokens_per_record = sum(lengths) / len(lengths)
        shares = self._shares.of(self._name, answers.answers)
        taken = positions(answers.answers)
        unread = round(sum(share * ends.unread(taken, topic) for topic, share in shares.items()))
        parked = sum(model.parked_requests for model in models)
        held = sum(model.held_tokens for model in models)
        load = Load(
            arrival_tokens_per_s=self._arrivals(models, ends, shares),
            backlog_tokens=backlog_tokens(unread + parked, self._tokens_per_record, held),
            pod_tokens_per_s=_throughput(models),
            measured_s=measured_s,
            replicas=replicas.wanted if replicas else None,
            ready=replicas.ready if replicas else None,
            slo_pressure=max((model.p99_s / model.slo_s for model in models if model.slo_s > 0), default=0.0),
            at_floor=_at_floor(models),
        )
        required = self._demand.publish(load, now_s)
        return Figure(required, unread, measured_s, self._demand.knows_what_for)

    def _arrivals(self, models: Sequence[pb.ModelDemand], ends: LogEnds, shares: Mapping[str, float]) -> float:
        """Calls as the aggregators counted them; records as the topics grew, for what is paused is not fetched."""
        growth = self._growth
        if not growth or ends.measured_s > growth[-1][0]:
            growth.append((ends.measured_s, {topic: ends.records(topic) for topic in shares}))
        while len(growth) > 1 and growth[1][0] <= ends.measured_s - self._arrival_window_s:
            growth.popleft()
        calls = sum(model.grpc_tokens_per_s for model in models)
        (first_s, first), (last_s, last) = growth[0], growth[-1]
        if last_s == first_s:
            return calls + sum(model.kafka_tokens_per_s for model in models)
        records = sum(share * max(0, last[topic] - first[topic]) for topic, share in shares.items())
        return calls + records / (last_s - first_s) * self._tokens_per_record


class Published:
    """The latest figures, and why there are none: what every asker is answered from."""

    def __init__(self, max_age_s: float, clock: Callable[[], float]) -> None:
        self._max_age_s = max_age_s
        self._clock = clock
        self._started_s = clock()
        self.figures: dict[str, Figure] = {}
        self.of_peers: Mapping[str, float] = {}
        self.busy: tuple[float, float] | None = None
        self.explain: Callable[[], str] = lambda: "nothing was measured yet"

    def figure(self, model: str) -> Figure:
        """One model's. Raises StaleInputError, never giving an old figure for a new one."""
        figure = self.figures.get(model)
        if figure is None or self._clock() - figure.measured_s > self._max_age_s:
            raise StaleInputError(f"the demand for {model} is not known: {self.explain()}")
        return figure

    def required_replicas(self, model: str) -> float:
        """The most that one of the scaler's replicas requires that know. Raises StaleInputError, as `figure`."""
        return self._highest(model, self.figure(model))

    def _highest(self, model: str, figure: Figure) -> float:
        of_peers = self.of_peers.get(model)
        if of_peers is None:
            return figure.required_replicas
        return max(figure.required_replicas, of_peers) if figure.knows_what_for else of_peers

    def busy_share(self) -> float:
        """The aggregators' busy shares, summed. Raises StaleInputError."""
        if self.busy is None or self._clock() - self.busy[1] > self._max_age_s:
            raise StaleInputError(f"how busy the aggregators are is not known: {self.explain()}")
        return self.busy[0]

    def ages_s(self, models: Sequence[str]) -> Mapping[str, tuple[float | None, float]]:
        """By model: required replicas where known, and the age of the oldest input, or of the process."""
        now_s = self._clock()
        found: dict[str, tuple[float | None, float]] = {}
        for model in models:
            figure = self.figures.get(model)
            age_s = now_s - (figure.measured_s if figure is not None else self._started_s)
            fresh = figure is not None and age_s <= self._max_age_s
            found[model] = (self._highest(model, figure) if figure is not None and fresh else None, age_s)
        return found


def positions(answers: Sequence[pb.GetDemandResponse]) -> Mapping[Place, int]:
    """How far each partition was taken; where two claim one (a rebalance), the one who is further."""
    found: dict[Place, int] = {}
    for answer in answers:
        for each in answer.partitions:
            place = (each.topic, each.partition)
            found[place] = max(each.fetch_position, found.get(place, 0))
    return found


def _throughput(models: Sequence[pb.ModelDemand]) -> float | None:
    lanes = [
        (lane.token_budget, lane.step_time_s)
        for model in models
        for lane in model.lanes
        if lane.token_budget and lane.step_time_s > 0
    ]
    return pod_throughput(lanes)


def _at_floor(models: Sequence[pb.ModelDemand]) -> bool:
    lanes = [lane for model in models for lane in model.lanes]
    return bool(lanes) and all(lane.budget_at_floor for lane in lanes)
