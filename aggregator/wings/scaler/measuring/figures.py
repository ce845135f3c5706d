"""Compute the figure of each model from the inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aggregator.wings.scaler.measuring.aggregators import Answers
from aggregator.wings.scaler.measuring.demand import Demand, DemandPolicy, Load
from aggregator.wings.scaler.measuring.kafka_lag import LogEnds, Place
from aggregator.wings.scaler.measuring.required_replicas import backlog_tokens, memory_pods, pod_throughput
from protos.aggregator.v1 import aggregator_pb2 as pb


@dataclass(frozen=True, slots=True)
class Replicas:
    """The pods of a Deployment: requested, and ready."""

    wanted: int
    ready: int
    measured_s: float


@dataclass(frozen=True, slots=True)
class Figure:
    """The published figure of one model; `measured_s` is the time of its oldest input.

    `saw_scale_up` is false while pods are pending that were asked for before this replica of the scaler started.
    """

    required_replicas: float
    lag_records: int
    measured_s: float
    saw_scale_up: bool = True


class TopicShares:
    """The share of each topic's records that is for each model.

    The records of a topic are for its own model, except for those that name a model without a topic. The aggregators
    measure the share of such a model in all records that they fetch, but not topic by topic.
    """

    def __init__(self, topics: Mapping[str, Sequence[str]]) -> None:
        self._topics = {model: tuple(own) for model, own in topics.items()}
        self._all = sorted({topic for own in self._topics.values() for topic in own})
        self._guests: Mapping[str, float] = {model: 0.0 for model, own in self._topics.items() if not own}

    def of(self, model: str, answers: Sequence[pb.GetDemandResponse]) -> Mapping[str, float]:
        """The model's share of the records, 0 to 1, by topic; the last known one while nothing is fetched."""
        rates = dict.fromkeys(self._topics, 0.0)
        for answer in answers:
            for each in answer.models:
                if each.model in rates and each.tokens_per_record > 0:
                    rates[each.model] += each.kafka_tokens_per_s / each.tokens_per_record
        total = sum(rates.values())
        if total > 0:
            self._guests = {guest: rates[guest] / total for guest in self._guests}
        if model in self._guests:
            return dict.fromkeys(self._all, self._guests[model])
        return dict.fromkeys(self._topics[model], 1.0 - sum(self._guests.values()))


class ModelFigures:
    """The figures of one model."""

    def __init__(
        self,
        name: str,
        shares: TopicShares,
        policy: DemandPolicy,
        *,
        arrival_window_s: float,
        first_tokens_per_record: float = 20.0,
        share: float = 1.0,
    ) -> None:
        """`name`: the model whose demand counts; `share`: the part of it that this Deployment serves."""
        self._name = name
        self._share = share
        self._arrival_window_s = arrival_window_s
        self._shares = shares
        self._demand = Demand(policy)
        self._growth: deque[tuple[float, Mapping[str, int]]] = deque()
        self._tokens_per_record = first_tokens_per_record

    def update(self, answers: Answers, ends: LogEnds, replicas: Replicas | None, now_s: float) -> Figure:
        """The figure now. Raises StaleInputError."""
        models = [model for answer in answers.answers for model in answer.models if model.model == self._name]
        measured_s = min(answers.measured_s, ends.measured_s, replicas.measured_s if replicas else ends.measured_s)
        lengths = [model.tokens_per_record for model in models if model.tokens_per_record > 0]
        if lengths:
            self._tokens_per_record = sum(lengths) / len(lengths)
        shares = self._shares.of(self._name, answers.answers)
        taken = positions(answers.answers)
        unread = round(self._share * sum(share * ends.unread(taken, topic) for topic, share in shares.items()))
        entries, entry_tokens = self._waiting_entries(answers.answers)
        pending = self._share * sum(model.pending_requests for model in models)
        held = self._share * sum(model.held_tokens for model in models)
        arriving = self._share * self._arrivals(models, ends, shares)
        pressures = [model.p99_s / model.slo_s for model in models if model.slo_s > 0]
        load = Load(
            arrival_tokens_per_s=arriving,
            backlog_tokens=backlog_tokens(unread + pending, self._tokens_per_record, held) + self._share * entry_tokens,
            pod_tokens_per_s=_throughput(models),
            measured_s=measured_s,
            replicas=replicas.wanted if replicas else None,
            ready=replicas.ready if replicas else None,
            memory_pods=memory_pods(arriving, *_memory(models)),
            slo_pressure=max(pressures, default=0.0),
            at_floor=_at_floor(models),
        )
        required = self._demand.publish(load, now_s)
        return Figure(required, unread + round(self._share * entries), measured_s, self._demand.saw_scale_up)

    def _waiting_entries(self, answers: Sequence[pb.GetDemandResponse]) -> tuple[int, float]:
        """Entries in the model's Redis streams that nobody has claimed, and their tokens; all aggregators read each."""
        streams = {each.stream: each for answer in answers for each in answer.streams if each.model == self._name}
        for each in (each for answer in answers for each in answer.streams if each.stream in streams):
            if each.waiting_entries > streams[each.stream].waiting_entries:
                streams[each.stream] = each
        entries = sum(each.waiting_entries for each in streams.values())
        tokens = (
            each.waiting_entries * (each.tokens_per_entry or self._tokens_per_record) for each in streams.values()
        )
        return entries, sum(tokens)

    def _arrivals(self, models: Sequence[pb.ModelDemand], ends: LogEnds, shares: Mapping[str, float]) -> float:
        """Calls as the aggregators count them; records by the growth of the topics, because some may not be fetched."""
        growth = self._growth
        if not growth or ends.measured_s > growth[-1][0]:
            growth.append((ends.measured_s, {topic: ends.records(topic) for topic in shares}))
        while len(growth) > 1 and growth[1][0] <= ends.measured_s - self._arrival_window_s:
            growth.popleft()
        calls = sum(model.other_tokens_per_s for model in models)
        (first_s, first), (last_s, last) = growth[0], growth[-1]
        if last_s == first_s:
            return calls + sum(model.kafka_tokens_per_s for model in models)
        records = sum(share * max(0, last[topic] - first[topic]) for topic, share in shares.items())
        return calls + records / (last_s - first_s) * self._tokens_per_record


def positions(answers: Sequence[pb.GetDemandResponse]) -> Mapping[Place, int]:
    """The fetch position of each partition; the larger one if two claim a partition (a rebalance)."""
    found: dict[Place, int] = {}
    for answer in answers:
        for each in answer.partitions:
            place = (each.topic, each.partition)
            found[place] = max(each.fetch_position, found.get(place, 0))
    return found


def _throughput(models: Sequence[pb.ModelDemand]) -> float | None:
    replicas = [
        (replica.token_budget, replica.step_time_s)
        for model in models
        for replica in model.replicas
        if replica.token_budget and replica.step_time_s > 0
    ]
    return pod_throughput(replicas)


def _memory(models: Sequence[pb.ModelDemand]) -> tuple[float, float]:
    """Mean token-seconds of keys and values per arriving token, and mean number of tokens that a pod can hold."""
    held = [model.kv_token_s_per_token for model in models if model.kv_token_s_per_token > 0]
    pods = [replica.kv_tokens for model in models for replica in model.replicas if replica.kv_tokens]
    return (sum(held) / len(held) if held else 0.0), (sum(pods) / len(pods) if pods else 0.0)


def _at_floor(models: Sequence[pb.ModelDemand]) -> bool:
    replicas = [replica for model in models for replica in model.replicas]
    return bool(replicas) and all(replica.budget_at_floor for replica in replicas)
