"""Describe where the pipeline stands, for the gauges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from aggregator.adapters.kafka_consumer import KafkaDeliveries
from aggregator.adapters.snapshot import LaneFigures, PartitionFigures, QueueFigures, Snapshot
from aggregator.core.query import Priority
from aggregator.models import Models
from aggregator.served import Served

_LANE_STATES = ("idle", "running", "staged")


def snapshot(
    models: Models, deliveries: KafkaDeliveries | None, tokens_per_record: Callable[[str], float] = lambda _: 0.0
) -> Snapshot:
    """Queues, lanes and partitions at this moment; to be called on the event loop.

    `tokens_per_record`: of a topic, as its latest records were; 0 before any.
    """
    now_s = time.monotonic()
    served = models.served()
    return Snapshot(
        queues=tuple(figures for each in served for figures in _queues(each, now_s)),
        lanes=tuple(figures for each in served for figures in _lanes(each)),
        partitions=tuple(_partitions(deliveries, tokens_per_record)) if deliveries is not None else (),
    )


def _queues(served: Served, now_s: float) -> Iterator[QueueFigures]:
    for priority, waiting in zip(Priority, served.dispatcher.queue.classes, strict=True):
        oldest = waiting.oldest()
        age_s = now_s - oldest.enqueued_s if oldest is not None else 0.0
        yield QueueFigures(served.description.model, priority.name.lower(), waiting.tokens, age_s)


def _lanes(served: Served) -> Iterator[LaneFigures]:
    for name, lane in served.dispatcher.lanes.items():
        curve = served.engines[name].description.curve
        yield LaneFigures(
            lane=lane.name,
            model=served.description.model,
            state=_LANE_STATES[lane.batches_out],
            inflight_tokens=lane.tokens_out,
            token_budget=lane.token_budget,
            saturation_point=curve.saturation_point if curve is not None else None,
            pressure=lane.steering.pressure if lane.steering is not None else None,
        )


def _partitions(deliveries: KafkaDeliveries, tokens_per_record: Callable[[str], float]) -> Iterator[PartitionFigures]:
    spans, paused = deliveries.uncommitted_span(), deliveries.paused()
    for (topic, partition), lag in deliveries.lag_records().items():
        place = (topic, partition)
        tokens = tokens_per_record(topic)
        lag_tokens = lag * tokens if tokens or not lag else None
        yield PartitionFigures(topic, partition, lag, lag_tokens, spans.get(place, 0), place in paused)
