"""Describe where the pipeline stands, for gauges: taken on the event loop, read by any thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Models
from aggregator.observability.gathered import Instrument, Labels
from aggregator.scheduler.work_item import Priority
from aggregator.sources.kafka.consumer.consumer import KafkaDeliveries

_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """What waits in one class of one model's queue; `age_s` is the oldest's, 0 when nothing waits."""

    model: str
    priority: str
    tokens: int
    age_s: float


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """One model server as the aggregator sees it; None where nothing is known."""

    replica: str
    model: str
    state: str
    inflight_tokens: int
    token_budget: int
    saturation_point: int | None = None
    pressure: float | None = None


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One assigned partition; `lag_*` count what is in the log and not yet fetched, None before that is known."""

    topic: str
    partition: int
    lag_records: int | None
    lag_tokens: float | None
    uncommitted_span: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    queues: tuple[QueueFigures, ...] = ()
    replicas: tuple[ReplicaFigures, ...] = ()
    partitions: tuple[PartitionFigures, ...] = ()


TakeSnapshot = Callable[[], Snapshot]


class OnLoop:
    """Takes snapshots on the event loop it was made on, whichever thread asks.

    When the loop does not come round within a second, the last one is given again: figures that stand still say
    more than none.
    """

    def __init__(self, take: TakeSnapshot) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._last = Snapshot()

    def __call__(self) -> Snapshot:
        """A snapshot."""
        if self._is_here() or self._loop.is_closed():
            return self._take()
        taken: Future[Snapshot] = Future()
        self._loop.call_soon_threadsafe(self._answer, taken)
        try:
            self._last = taken.result(_TIMEOUT_S)
        except FutureTimeoutError:
            taken.cancel()
        return self._last

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _answer(self, taken: Future[Snapshot]) -> None:
        if taken.set_running_or_notify_cancel():
            try:
                taken.set_result(self._take())
            except Exception as error:  # noqa: BLE001 - the reader's to report
                taken.set_exception(error)


_QUEUE = ("model", "priority")
_REPLICA = ("replica", "model")
_PARTITION = ("topic", "partition")

_QUEUE_TOKENS = Instrument("embed.queue.tokens", "{token}", "tokens waiting", _QUEUE)
_QUEUE_AGE = Instrument("embed.queue.age", "s", "age of the oldest query that waits", _QUEUE)
_REPLICA_STATE = Instrument("embed.replica.state", "1", "1 for the state a model server is in", (*_REPLICA, "state"))
_INFLIGHT = Instrument("embed.replica.inflight_tokens", "{token}", "tokens out to a model server", _REPLICA)
_BUDGET = Instrument("embed.token_budget", "{token}", "tokens a batch may hold", _REPLICA)
_SATURATION = Instrument("embed.saturation_point", "{token}", "tokens past which more do not pay", _REPLICA)
_PRESSURE = Instrument("embed.sla.pressure", "1", "how far latency stands from what is promised; 1: there", _REPLICA)
_LAG = Instrument("embed.consumer.lag", "{record}", "records in the log, not yet fetched", _PARTITION)
_LAG_TOKENS = Instrument("embed.consumer.lag_tokens", "{token}", "tokens in the log, estimated", _PARTITION)
_SPAN = Instrument(
    "embed.consumer.uncommitted_span", "{record}", "records between the commit and the highest completed", _PARTITION
)
_PAUSED = Instrument("embed.consumer.paused", "1", "1 while a partition is paused", _PARTITION)

GAUGES = (
    *(_QUEUE_TOKENS, _QUEUE_AGE, _REPLICA_STATE, _INFLIGHT, _BUDGET, _SATURATION, _PRESSURE),
    *(_LAG, _LAG_TOKENS, _SPAN, _PAUSED),
)


def gauge_values(snapshot: Snapshot) -> Mapping[Instrument, Mapping[Labels, float]]:
    """The series of every gauge; what is not known has none."""
    values: dict[Instrument, dict[Labels, float]] = {instrument: {} for instrument in GAUGES}

    def put(instrument: Instrument, value: float | None, *labels: str) -> None:
        if value is not None:
            values[instrument][labels] = value

    for queue in snapshot.queues:
        put(_QUEUE_TOKENS, queue.tokens, queue.model, queue.priority)
        put(_QUEUE_AGE, queue.age_s, queue.model, queue.priority)
    for replica in snapshot.replicas:
        put(_REPLICA_STATE, 1, replica.replica, replica.model, replica.state)
        put(_INFLIGHT, replica.inflight_tokens, replica.replica, replica.model)
        put(_BUDGET, replica.token_budget, replica.replica, replica.model)
        put(_SATURATION, replica.saturation_point, replica.replica, replica.model)
        put(_PRESSURE, replica.pressure, replica.replica, replica.model)
    for partition in snapshot.partitions:
        labels = (partition.topic, str(partition.partition))
        put(_LAG, partition.lag_records, *labels)
        put(_LAG_TOKENS, partition.lag_tokens, *labels)
        put(_SPAN, partition.uncommitted_span, *labels)
        put(_PAUSED, float(partition.paused), *labels)
    return values


_REPLICA_STATES = ("idle", "running", "staged")


def snapshot(
    models: Models, deliveries: KafkaDeliveries | None, tokens_per_record: Callable[[str], float] = lambda _: 0.0
) -> Snapshot:
    """Queues, replicas and partitions at this moment; to be called on the event loop.

    `tokens_per_record`: of a topic, as its latest records were; 0 before any.
    """
    now_s = time.monotonic()
    model_revision = models.in_service()
    return Snapshot(
        queues=tuple(figures for each in model_revision for figures in _queues(each, now_s)),
        replicas=tuple(figures for each in model_revision for figures in _replicas(each)),
        partitions=tuple(_partitions(deliveries, tokens_per_record)) if deliveries is not None else (),
    )


def _queues(model_revision: ModelRevision, now_s: float) -> Iterator[QueueFigures]:
    for priority, waiting in zip(Priority, model_revision.dispatcher.queue.classes, strict=True):
        oldest = waiting.oldest()
        age_s = now_s - oldest.enqueued_s if oldest is not None else 0.0
        yield QueueFigures(model_revision.description.model, priority.name.lower(), waiting.tokens, age_s)


def _replicas(model_revision: ModelRevision) -> Iterator[ReplicaFigures]:
    for name, replica in model_revision.dispatcher.replicas.items():
        curve = model_revision.engines[name].description.curve
        yield ReplicaFigures(
            replica=replica.name,
            model=model_revision.description.model,
            state=_REPLICA_STATES[replica.batches_out],
            inflight_tokens=replica.tokens_out,
            token_budget=replica.token_budget,
            saturation_point=curve.saturation_point if curve is not None else None,
            pressure=replica.budget_controller.pressure if replica.budget_controller is not None else None,
        )


def _partitions(deliveries: KafkaDeliveries, tokens_per_record: Callable[[str], float]) -> Iterator[PartitionFigures]:
    spans, paused = deliveries.uncommitted_span(), deliveries.paused()
    for (topic, partition), lag in deliveries.lag_records().items():
        place = (topic, partition)
        tokens = tokens_per_record(topic)
        lag_tokens = lag * tokens if tokens or not lag else None
        yield PartitionFigures(topic, partition, lag, lag_tokens, spans.get(place, 0), place in paused)
