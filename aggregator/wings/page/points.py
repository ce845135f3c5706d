"""The plots of the live page: one point of each, whenever somebody looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from aggregator.admission.models import Models
from aggregator.model_server import ModelServer
from aggregator.observability.metrics import Totals
from aggregator.reports.state import AggregatorState
from aggregator.scheduler.replica import Replica
from aggregator.scheduler.work_item import Priority
from aggregator.wings.page.recorder import KEPT_S, LOOKS_S, Recorder, Waits
from aggregator.wings.page.viewers import EVERY_S

POINTS = int(KEPT_S / EVERY_S)
_SECOND = int(1.0 / EVERY_S)
_FIRST_TOKENS = 20
"""Points whose times to the first token count: there may be few in a second."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Sums since the start, at one time."""

    now_s: float
    arrived_queries: int
    arrived_tokens: int
    answered_tokens: int
    totals: Totals


class Points:
    """Differences and recent values since the last look. Used on the event loop."""

    def __init__(self, state: AggregatorState, recorder: Recorder) -> None:
        self._models = state.models
        self._metrics = state.metrics
        self._demand = state.demand
        self._recorder = recorder
        self._readings: deque[_Reading] = deque(maxlen=POINTS)
        self._latencies: deque[Mapping[str, npt.NDArray[np.float64]]] = deque(maxlen=_SECOND)
        self._waits: deque[Mapping[str, Sequence[Waits]]] = deque(maxlen=_SECOND)
        self._first_tokens: deque[Sequence[float]] = deque(maxlen=_FIRST_TOKENS)

    def forget(self) -> None:
        """Nobody looked for a while: differences since then say nothing."""
        self._readings.clear()

    def take(self, now_s: float) -> Mapping[str, object]:
        recent = self._recorder.take()
        if self._readings and now_s - self._readings[-1].now_s > LOOKS_S:
            for parts in (self._latencies, self._waits, self._first_tokens):
                parts.clear()
        self._latencies.append(recent.latencies_s)
        self._waits.append(recent.waits)
        self._first_tokens.append(recent.first_tokens_s)
        arrived_queries, arrived_tokens = self._demand.totals()
        answered_tokens = sum(model.admission.released for model in self._models)
        reading = _Reading(now_s, arrived_queries, arrived_tokens, answered_tokens, self._metrics.totals())
        before = self._readings[-1] if self._readings else None
        self._readings.append(reading)
        queued, oldest_s = self._queue(now_s)
        return {
            "t": now_s,
            "queued": queued,
            "oldest_s": oldest_s,
            **_rates(before, reading),
            "answered": _rate(recent.answered_queries, before, reading),
            "latency": self._latency(),
            "generation": self._generation(now_s),
        }

    def recent(self) -> Totals:
        """The rise of the sums since the oldest reading."""
        now, first = self._metrics.totals(), self._readings[0].totals if self._readings else None
        if first is None:
            return Totals(**dict.fromkeys((field.name for field in fields(Totals)), 0.0))
        return Totals(**{each.name: getattr(now, each.name) - getattr(first, each.name) for each in fields(Totals)})

    def _queue(self, now_s: float) -> tuple[list[int], float]:
        """Waiting tokens of each class, and the age of the oldest query."""
        queued, oldest_s = [0] * len(Priority), 0.0
        for model_revision in self._models.in_service():
            for place, waiting in enumerate(model_revision.dispatcher.queue.classes):
                queued[place] += waiting.tokens
                oldest = waiting.oldest()
                if oldest is not None:
                    oldest_s = max(oldest_s, now_s - oldest.enqueued_s)
        return queued, oldest_s

    def _latency(self) -> Mapping[str, Sequence[float]]:
        """The last second of each source: requests, p50, p99, and the mean time queued, batched, computing, rest."""
        found: dict[str, Sequence[float]] = {}
        for source in dict.fromkeys(source for each in self._latencies for source in each):
            values = np.concatenate([each[source] for each in self._latencies if source in each])
            if not values.size:
                continue
            p50, p99 = np.percentile(values, (50, 99)).tolist()
            waits = [each for part in self._waits for each in part.get(source, ())]
            parts = np.mean(waits, axis=0).tolist() if waits else [0.0, 0.0, 0.0]
            rest_s = max(0.0, float(values.mean()) - sum(parts)) if waits else 0.0
            found[source] = (values.size, p50, p99, *parts, rest_s)
        return found

    def _generation(self, now_s: float) -> Mapping[str, float] | None:
        """Running sequences, the share of the KV cache in use, times to the first token and between tokens."""
        running, free, total = 0, 0, 0
        steps: list[float] = []
        generates = False
        for replica, server in generating(self._models):
            generates = True
            load = server.load
            total += replica.kv_tokens
            free += replica.kv_tokens if load is None or not replica.sequences else load.free_kv_tokens
            running += replica.sequences
            steps += [each.step_duration_s for each in reversed(server.last_steps) if each.reported_s > now_s - 1.0]
        if not generates:
            return None
        first_tokens = [seconds for part in self._first_tokens for seconds in part]
        first_p50, first_p99 = np.percentile(first_tokens, (50, 99)).tolist() if first_tokens else (0.0, 0.0)
        step_p50, step_p99 = np.percentile(steps, (50, 99)).tolist() if steps else (0.0, 0.0)
        return {
            "running": running,
            "kv": 1.0 - free / total if total else 0.0,
            "first_p50": first_p50,
            "first_p99": first_p99,
            "between_p50": step_p50,
            "between_p99": step_p99,
        }


def _rates(before: _Reading | None, now: _Reading) -> Mapping[str, float | None]:
    """Per second: queries and tokens that arrived, tokens answered, calls refused, queries expired and coalesced."""
    old = before or now
    return {
        "arrived": _rate(now.arrived_queries - old.arrived_queries, before, now),
        "arrived_tokens": _rate(now.arrived_tokens - old.arrived_tokens, before, now),
        "answered_tokens": _rate(now.answered_tokens - old.answered_tokens, before, now),
        "refused": _rate(now.totals.refused - old.totals.refused, before, now),
        "expired": _rate(now.totals.expired - old.totals.expired, before, now),
        "coalesced": _rate(now.totals.coalesced - old.totals.coalesced, before, now),
    }


def _rate(rise: float, before: _Reading | None, now: _Reading) -> float | None:
    """A rise per second; None where nobody looked for longer than the recorder listens."""
    if before is None or not 0.0 < now.now_s - before.now_s <= LOOKS_S:
        return None
    return rise / (now.now_s - before.now_s)


def generating(models: Models) -> Iterator[tuple[Replica, ModelServer]]:
    for model_revision in models.in_service():
        for name, replica in model_revision.dispatcher.replicas.items():
            if replica.kv_tokens:
                yield replica, model_revision.servers[name]


def tokens_by_place(models: Models) -> tuple[int, int, int]:
    """Admitted tokens in queues, at model servers, and in completion."""
    queued = computing = completing = 0
    for model in models:
        held, sequences = model.admission.total, 0
        for model_revision in model.revisions:
            tokens, replicas = model_revision.dispatcher.queue.tokens, model_revision.dispatcher.replicas
            out = sum(replica.tokens_out for replica in replicas.values())
            sequences += sum(each.sequences for each in replicas.values())
            queued, computing, held = queued + tokens, computing + out, held - tokens - out
        if sequences:  # they hold their tokens until they end, and are no batch
            computing += max(0, held)
        else:
            completing += max(0, held)
    return queued, computing, completing


def most_tokens(models: Models) -> tuple[int, int, int]:
    """The tokens that may be held, those from which background records wait, and those that fit the model servers.

    A server takes a batch that runs and one behind it; one that generates takes what its KV cache holds.
    """
    held = sum(model.admission.limit for model in models)
    background = sum(int(model.admission.intake_limit(Priority.BACKGROUND)) for model in models)
    computing = 0
    for model in models:
        for model_revision in model.revisions:
            for replica in model_revision.dispatcher.replicas.values():
                computing += replica.kv_tokens or 2 * replica.largest
    return held, background, computing


def is_saturated(models: Models, now_s: float) -> bool:
    """Whether queries wait while every model server of their model is busy."""
    dispatchers = [model_revision.dispatcher for model_revision in models.in_service()]
    return any(
        each.queue.tokens > 0 and each.replicas.due_s(now_s, each.queue.next_priority) > now_s for each in dispatchers
    )
