"""The gauges of queues, replicas and partitions: read on the event loop, whichever thread asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from aggregator.admission.models import Models
from aggregator.request.request import Backlog
from aggregator.scheduler.replica import STATES
from aggregator.scheduler.work_item import Priority
from k8s.pod.metrics_buffer import Instrument, Labels

_TIMEOUT_S = 1.0  # an event loop that is later than this shows its last values

Values = Mapping[Instrument, Mapping[Labels, float]]
"""The present value of each series of each gauge; an unknown value has no series."""

_QUEUE = ("model", "priority")
_REPLICA = ("replica", "model")
_PARTITION = ("topic", "partition")

QUEUE_TOKENS = Instrument("tokenbatch.queue.tokens", "{token}", "tokens in the queue", _QUEUE)
QUEUE_AGE = Instrument("tokenbatch.queue.age", "s", "age of the oldest query in the queue", _QUEUE)
REPLICA_STATE = Instrument(
    "tokenbatch.replica.state", "1", "1 for the state a model server is in", (*_REPLICA, "state")
)
INFLIGHT = Instrument("tokenbatch.replica.inflight_tokens", "{token}", "tokens in flight at a model server", _REPLICA)
BUDGET = Instrument("tokenbatch.token_budget", "{token}", "tokens a batch may hold", _REPLICA)
SATURATION = Instrument(
    "tokenbatch.saturation_point", "{token}", "tokens above which throughput hardly grows", _REPLICA
)
LAG = Instrument("tokenbatch.consumer.lag", "{record}", "records in the log, not yet fetched", _PARTITION)
SPAN = Instrument(
    "tokenbatch.consumer.uncommitted_span",
    "{record}",
    "records from the committed offset to the highest completed",
    _PARTITION,
)
PAUSED = Instrument("tokenbatch.consumer.paused", "1", "1 while a partition is paused", _PARTITION)

OUTRANKED = Instrument(
    "tokenbatch.consumer.outranked",
    "1",
    "1 while a partition is paused and less urgent records than the topic's own class fill the queue",
    _PARTITION,
)

GAUGES = (QUEUE_TOKENS, QUEUE_AGE, REPLICA_STATE, INFLIGHT, BUDGET, SATURATION, LAG, SPAN, PAUSED, OUTRANKED)


class OnLoop:
    """Reads on the event loop it was made on, whichever thread asks.

    When the loop does not come round within a second, the last values are given again: old values are better than none.
    """

    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._last: Values = {}

    def __call__(self) -> Values:
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


def gauge_values(models: Models, backlogs: Iterable[Backlog] = ()) -> Values:
    values: dict[Instrument, dict[Labels, float]] = {instrument: {} for instrument in GAUGES}
    _read_models(values, models, time.monotonic())
    for backlog in backlogs:
        labels = (backlog.topic, str(backlog.partition))
        values[LAG][labels] = backlog.records
        values[SPAN][labels] = backlog.uncommitted_span
        values[PAUSED][labels] = backlog.paused
        values[OUTRANKED][labels] = backlog.outranked
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
            place, curve = (name, model), model_revision.servers[name].description.curve
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
