"""Read the gauges of queues, replicas and partitions: on the event loop, for a reader on any thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from aggregator.admission.models import Models
from aggregator.observability.metrics_buffer import Instrument, Labels
from aggregator.scheduler.work_item import Priority
from aggregator.sources.kafka.consumer.consumer import KafkaConsumer

_TIMEOUT_S = 1.0

Values = Mapping[Instrument, Mapping[Labels, float]]
"""Of each gauge, the present value of each series; what is not known has no series."""

_QUEUE = ("model", "priority")
_REPLICA = ("replica", "model")
_PARTITION = ("topic", "partition")

_QUEUE_TOKENS = Instrument("embed.queue.tokens", "{token}", "tokens in the queue", _QUEUE)
_QUEUE_AGE = Instrument("embed.queue.age", "s", "age of the oldest query in the queue", _QUEUE)
_REPLICA_STATE = Instrument("embed.replica.state", "1", "1 for the state a model server is in", (*_REPLICA, "state"))
_INFLIGHT = Instrument("embed.replica.inflight_tokens", "{token}", "tokens in flight at a model server", _REPLICA)
_BUDGET = Instrument("embed.token_budget", "{token}", "tokens a batch may hold", _REPLICA)
_SATURATION = Instrument("embed.saturation_point", "{token}", "tokens above which throughput hardly grows", _REPLICA)
_PRESSURE = Instrument("embed.sla.pressure", "1", "latency over its target; 1: at the target", _REPLICA)
_LAG = Instrument("embed.consumer.lag", "{record}", "records in the log, not yet fetched", _PARTITION)
_LAG_TOKENS = Instrument("embed.consumer.lag_tokens", "{token}", "tokens in the log, estimated", _PARTITION)
_SPAN = Instrument(
    "embed.consumer.uncommitted_span",
    "{record}",
    "records from the committed offset to the highest completed",
    _PARTITION,
)
_PAUSED = Instrument("embed.consumer.paused", "1", "1 while a partition is paused", _PARTITION)

GAUGES = (
    *(_QUEUE_TOKENS, _QUEUE_AGE, _REPLICA_STATE, _INFLIGHT, _BUDGET, _SATURATION, _PRESSURE),
    *(_LAG, _LAG_TOKENS, _SPAN, _PAUSED),
)

_REPLICA_STATES = ("idle", "running", "staged")


def gauge_values(
    models: Models, consumer: KafkaConsumer | None, tokens_per_record: Callable[[str], float] = lambda _: 0.0
) -> Values:
    """The gauges at this moment; to be called on the event loop.

    `tokens_per_record`: of a topic, as its latest records were; 0 before any.
    """
    values: dict[Instrument, dict[Labels, float]] = {instrument: {} for instrument in GAUGES}
    _read_models(values, models, time.monotonic())
    if consumer is not None:
        _read_partitions(values, consumer, tokens_per_record)
    return values


def _read_models(values: dict[Instrument, dict[Labels, float]], models: Models, now_s: float) -> None:
    for model_revision in models.in_service():
        model = model_revision.description.model
        for priority, waiting in zip(Priority, model_revision.dispatcher.queue.classes, strict=True):
            queue, oldest = (model, priority.name.lower()), waiting.oldest()
            values[_QUEUE_TOKENS][queue] = waiting.tokens
            values[_QUEUE_AGE][queue] = now_s - oldest.enqueued_s if oldest is not None else 0.0
        for name, replica in model_revision.dispatcher.replicas.items():
            place, curve = (name, model), model_revision.engines[name].description.curve
            values[_REPLICA_STATE][*place, _REPLICA_STATES[replica.batches_out]] = 1
            values[_INFLIGHT][place] = replica.tokens_out
            values[_BUDGET][place] = replica.token_budget
            if curve is not None:
                values[_SATURATION][place] = curve.saturation_point
            if replica.budget_controller is not None and replica.budget_controller.pressure is not None:
                values[_PRESSURE][place] = replica.budget_controller.pressure


def _read_partitions(
    values: dict[Instrument, dict[Labels, float]],
    consumer: KafkaConsumer,
    tokens_per_record: Callable[[str], float],
) -> None:
    spans, paused = consumer.uncommitted_span(), consumer.paused()
    for (topic, partition), lag in consumer.lag_records().items():
        labels, tokens = (topic, str(partition)), tokens_per_record(topic)
        values[_LAG][labels] = lag
        if tokens or not lag:
            values[_LAG_TOKENS][labels] = lag * tokens
        values[_SPAN][labels] = spans.get((topic, partition), 0)
        values[_PAUSED][labels] = (topic, partition) in paused


class OnLoop:
    """Reads on the event loop it was made on, whichever thread asks.

    When the loop does not come round within a second, the last values are given again: old values say more than none.
    """

    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._last: Values = {}

    def __call__(self) -> Values:
        """The present values."""
        if self._is_here() or self._loop.is_closed():
            return self._read()
        reading = asyncio.run_coroutine_threadsafe(self._read_here(), self._loop)
        try:
            self._last = reading.result(_TIMEOUT_S)
        except TimeoutError:
            reading.cancel()
        return self._last

    async def _read_here(self) -> Values:
        return self._read()

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False
