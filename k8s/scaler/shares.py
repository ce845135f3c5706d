"""Share out the records of Kafka's topics among models: those that name no model, and those that name another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protos.aggregator.v1 import aggregator_pb2 as pb


class TopicShares:
    """Which share of each topic's records is for which model.

    A topic's records are its own model's, less those for models without a topic: whatever these are sent by Kafka
    names them on another's. How much that is, the aggregators say of all they fetch; by topic nobody does.
    """

    def __init__(self, topics: Mapping[str, Sequence[str]]) -> None:
        """`topics`: by model, those whose records are its own when they name none."""
        self._topics = {model: tuple(own) for model, own in topics.items()}
        self._all = sorted({topic for own in self._topics.values() for topic in own})
        self._guests: Mapping[str, float] = {model: 0.0 for model, own in self._topics.items() if not own}

    def of(self, model: str, answers: Sequence[pb.GetDemandResponse]) -> Mapping[str, float]:
        """By topic, the model's share of its records: 0 to 1; as it was last known while nothing is fetched."""
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
