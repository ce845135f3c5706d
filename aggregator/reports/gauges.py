"""Read the gauges of queues, replicas and partitions, on the event loop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from aggregator.admission.models import Models
from aggregator.observability.gauges import (
    BUDGET,
    GAUGES,
    INFLIGHT,
    LAG,
    PAUSED,
    QUEUE_AGE,
    QUEUE_TOKENS,
    REPLICA_STATE,
    SATURATION,
    SPAN,
    Values,
)
from aggregator.scheduler.replica import STATES
from aggregator.scheduler.work_item import Priority
from k8s.process.metrics_buffer import Instrument, Labels


class Consumer(Protocol):
    """What reads partitions (topic, number); a Redis stream is the partition `redis` of a topic of its name."""

    def lag_records(self) -> Mapping[Any, int]: ...

    def uncommitted_span(self) -> Mapping[Any, int]:
        """Records of each partition from the committed offset to the highest completed one."""
        ...

    def paused(self) -> AbstractSet[Any]: ...


def gauge_values(models: Models, consumers: Sequence[Consumer] = ()) -> Values:
    values: dict[Instrument, dict[Labels, float]] = {instrument: {} for instrument in GAUGES}
    _read_models(values, models, time.monotonic())
    for consumer in consumers:
        spans, paused = consumer.uncommitted_span(), consumer.paused()
        for (topic, partition), lag in consumer.lag_records().items():
            labels = (topic, str(partition))
            values[LAG][labels] = lag
            values[SPAN][labels] = spans.get((topic, partition), 0)
            values[PAUSED][labels] = (topic, partition) in paused
    return values


def _read_models(values: dict[Instrument, dict[Labels, float]], models: Models, now_s: float) -> None:
    for model_revision in models.in_service():
        model = model_revision.description.model
        for priority, waiting in zip(Priority, model_revision.dispatcher.queue.classes, strict=True):
            queue, oldest = (model, priority.name.lower()), waiting.oldest()
            age_s = now_s - oldest.enqueued_s if oldest is not None else 0.0
            values[QUEUE_TOKENS][queue] = values[QUEUE_TOKENS].get(queue, 0) + waiting.tokens
            values[QUEUE_AGE][queue] = max(values[QUEUE_AGE].get(queue, 0.0), age_s)
        for name, replica in model_revision.dispatcher.replicas.items():
            place, curve = (name, model), model_revision.engines[name].description.curve
            sibling = replica.sibling
            if sibling is not None and place in values[BUDGET]:
                continue  # of a server with two tasks, the one that embeds
            state, tokens = replica.state, replica.tokens_out
            if sibling is not None:
                state, tokens = max(state, sibling.state, key=STATES.index), tokens + sibling.tokens_out
            values[REPLICA_STATE][*place, state] = 1
            values[INFLIGHT][place] = tokens
            values[BUDGET][place] = replica.token_budget
            if curve is not None:
                values[SATURATION][place] = curve.saturation_point
