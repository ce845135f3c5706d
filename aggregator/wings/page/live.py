"""The state of one aggregator, for the page: read on the event loop, asked for by the viewers' thread."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from math import inf
from typing import Any, TypeVar

from typing_extensions import override

from aggregator.admission.models import Model
from aggregator.model_server import GenerationLoad
from aggregator.reports.state import AggregatorState
from aggregator.request.request import Backlog
from aggregator.scheduler.rates import BusyShare
from aggregator.scheduler.replica import STATES, Replica
from aggregator.wings.page.pages import LivePages, live_page
from aggregator.wings.page.points import POINTS, Points, generating, is_saturated, most_tokens, tokens_by_place
from aggregator.wings.page.recorder import KEPT_S, LOOKS_S, Recorder
from aggregator.wings.page.viewers import Feed
from aggregator.wings.page.words import (
    SLOW,
    Latency,
    Scaling,
    Work,
    anchor,
    back_pressure,
    bottleneck,
    other_problems,
    server_problems,
)
from k8s.pod.monitoring import Pages
from k8s.pod.telemetry import release

T = TypeVar("T")

_TIMEOUT_S = 1.0  # a loop that is silent for longer is worth a line on the page
_STATES = 10
"""Events, 5 s, whose states name the bottleneck: a single state would make the sentence flicker."""
_MOST_LANES, _MOST_PARTITIONS = 64, 64  # as many as fit a screen


def live_pages(state: AggregatorState) -> Pages:
    """The page of an aggregator, to be made on its event loop."""
    return LivePages(LiveFeed(state))


class LiveFeed(Feed):
    """The state that the page shows. Made on the event loop; `read` is called by the viewers' thread."""

    def __init__(self, state: AggregatorState, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._models = state.models
        self._troubles = state.server_troubles
        self._demand = state.demand
        self._backlogs = state.backlogs or list
        self._has_brokers = state.backlogs is not None
        self._away = state.broker_troubles
        self._slo_s = state.slo_s
        self._file_limit_warning = state.file_limit_warning
        self._clock = clock
        state.metrics.observer = self._recorder = Recorder(clock)
        self._name, self._release = socket.gethostname(), release()
        self._started_s = clock()
        self._loop = asyncio.get_running_loop()
        self._busy = BusyShare()
        self._states: deque[tuple[bool, bool]] = deque(maxlen=_STATES)
        self._looked_s = -inf
        self._points = Points(state, self._recorder)
        self._history: deque[Mapping[str, object]] = deque(maxlen=POINTS)
        self._steps_until_s: dict[str, float] = {}
        self._number = 0
        self._silent_since_s: float | None = None

    # On the viewers' thread.

    @override
    def read(self, *, full: bool) -> tuple[object, object]:
        """The state now; while the event loop does not run, only for how long."""
        asked_s = self._clock()
        try:
            event = self._on_loop(lambda: self.read_on_loop(full=full))
        except TimeoutError:
            self._silent_since_s = asked_s if self._silent_since_s is None else self._silent_since_s
            return {"silent_s": self._clock() - self._silent_since_s}, None
        self._silent_since_s = None
        return event

    @override
    def snapshot(self) -> Mapping[str, object] | None:
        """The whole state for a page that is loaded; None while the event loop does not run."""
        try:
            return self._on_loop(self.snapshot_on_loop)
        except TimeoutError:
            return None

    def _on_loop(self, read: Callable[[], T]) -> T:
        """What it reads on the event loop. Raises TimeoutError."""
        answer: Future[T] = Future()

        def read_here() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(read())
                except Exception as error:  # noqa: BLE001 - it is raised on the thread that asks
                    answer.set_exception(error)

        self._loop.call_soon_threadsafe(read_here)
        try:
            return answer.result(_TIMEOUT_S)
        finally:
            answer.cancel()

    # On the event loop.

    def read_on_loop(self, *, full: bool) -> tuple[object, object]:
        event = self._look(self._clock())
        event["point"] = self._history[-1]
        steps = self._steps(self._looked_s, new_only=True)
        new, all_of_it = self._recorder.take_new(), self._all_of(event) if full else None
        return {**event, "batches": new, "steps": steps}, all_of_it

    def snapshot_on_loop(self) -> Mapping[str, object]:
        """The whole state; what is new stays new for those who look already."""
        now_s = self._clock()
        is_watched = now_s - self._looked_s <= LOOKS_S and self._has_rates
        event = self._event(now_s) if is_watched else self._look(now_s)
        return {**self._all_of(event), "has_rates": self._has_rates}

    @property
    def _has_rates(self) -> bool:
        return bool(self._history) and self._history[-1]["answered"] is not None

    def _look(self, now_s: float) -> dict[str, Any]:
        """Somebody looks: take one more point."""
        self._recorder.look()
        if now_s - self._looked_s > KEPT_S:
            self._points.forget()
            self._history.clear()
            self._states.clear()
            self._busy = BusyShare()
        self._looked_s = now_s
        event = self._event(now_s)
        self._history.append(self._points.take(now_s))
        return event

    def _all_of(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        kept, steps = self._recorder.kept(), self._steps(self._looked_s, new_only=False)
        return {**event, "batches": kept, "steps": steps, "history": list(self._history)}

    def _event(self, now_s: float) -> dict[str, Any]:
        self._number += 1
        work = self._work(now_s)
        scaling = [self._scaling(model) for model in self._models]
        troubles = [
            (target.address, target.model, why.partition("; last error")[0])  # gRPC says the same twice
            for target, why in self._troubles()
            if why
        ]
        backlogs, lanes = self._backlogs(), self._lanes(troubles)
        latency = Latency(self._slo_s, self._is_slow())
        slow = {lane["name"]: lane["scale"] for lane in lanes if lane.get("scale", 0.0) >= SLOW}
        found = [
            *server_problems(troubles, scaling, slow, pressed=work.is_saturated or latency.late),
            *other_problems(
                self._points.recent(),
                latency,
                away=self._away(),
                file_limit_warning=self._file_limit_warning,
                outranked={each.topic for each in backlogs if each.outranked},
            ),
            *back_pressure(backlogs),
        ]
        held, background, computing = most_tokens(self._models)
        partitions = self._partitions(backlogs)
        return {
            "number": self._number,
            "now": now_s,
            "name": self._name,
            "release": self._release,
            "up_s": now_s - self._started_s,
            "version": live_page().version,
            "slo_s": self._slo_s,
            "lanes": lanes,
            "partitions": partitions[:_MOST_PARTITIONS] if self._has_brokers else None,
            "left": [sum(row[2] for row in partitions), sum(row[3] for row in partitions)],
            "scaling": [{**asdict(each), "missing": each.missing} for each in scaling],
            "work": [["queue", work.queued], ["model servers", work.computing], ["completion", work.completing]],
            "most": {"held": held, "background": background, "computing": computing},
            "bottleneck": bottleneck(work, scaling, latency),
            "problems": [[each.text, anchor(each.runbook), each.severity.value] for each in found],
        }

    def _work(self, now_s: float) -> Work:
        self._states.append((is_saturated(self._models, now_s), any(each.paused for each in self._backlogs())))
        saturated, paused = (sum(each) / len(self._states) for each in zip(*self._states, strict=True))
        core = self._busy.observe(now_s, time.thread_time())
        return Work(*tokens_by_place(self._models), saturated, paused, core)

    def _is_slow(self) -> bool:
        slos = [model_revision.slo for model_revision in self._models.in_service()]
        return any(slo.p99_s > slo.goal_s for slo in slos if slo is not None)

    def _steps(self, now_s: float, *, new_only: bool) -> list[Sequence[object]]:
        """Steps of servers that generate: server, end, duration, decoding sequences, tokens of prompts and inputs."""
        found: list[Sequence[object]] = []
        for replica, server in generating(self._models):
            since_s = self._steps_until_s.get(replica.name, -inf) if new_only else -inf
            since_s = max(since_s, now_s - KEPT_S)
            last: Sequence[GenerationLoad] = server.last_steps
            found += [
                (
                    replica.name,
                    each.reported_s,
                    each.step_duration_s,
                    each.decoding_sequences,
                    each.prefill_tokens,
                    each.embedding_tokens,
                )
                for each in list(last)
                if each.reported_s > since_s
            ]
            if new_only and last:
                self._steps_until_s[replica.name] = last[-1].reported_s
        return found

    def _lanes(self, troubles: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
        lanes: dict[str, dict[str, Any]] = {}
        for served in self._models.tasks:
            for model_revision in served.revisions.values():
                for name, replica in model_revision.dispatcher.replicas.items():
                    lane = lanes.setdefault(name, {"name": name, "model": served.name, "tasks": [], "why": ""})
                    lane["tasks"].append(served.task)
                    self._describe(lane, replica)
        for address, model_name, why in troubles:
            lanes[address] = {"name": address, "model": model_name, "tasks": [], "why": why, "state": "gone"}
        return sorted(lanes.values(), key=lambda lane: (str(lane["model"]), str(lane["name"])))[:_MOST_LANES]

    def _describe(self, lane: dict[str, Any], replica: Replica) -> None:
        state = replica.state
        if replica.sequences and state == "idle":
            state = "running"
        if STATES.index(state) >= STATES.index(lane.get("state", "idle")):
            lane["state"] = state
        if "budget" not in lane:  # of a server with two tasks, the first one's
            curve = replica.curve
            lane.update(
                budget=replica.token_budget,
                largest=replica.largest,
                scale=replica.scale,
                curve=None if curve is None else [curve.floor_s, curve.fixed_s, curve.per_token_s],
                point=None if curve is None else curve.saturation_point,
            )
        lane["tokens_out"] = lane.get("tokens_out", 0) + replica.tokens_out
        if replica.kv_tokens:
            lane["sequences"] = replica.sequences

    def _scaling(self, model: Model) -> Scaling:
        terms = self._demand.terms(model)
        return Scaling(
            model.name,
            terms.arriving_tokens_per_s,
            terms.backlog_tokens,
            terms.pod_tokens_per_s,
            terms.memory_pods,
            terms.required,
            serving=len({name for model_revision in model.revisions for name in model_revision.servers}),
            pending=sum(len(served.pending) for served in model.tasks.values()),
        )

    def _partitions(self, backlogs: Sequence[Backlog]) -> list[tuple[str, int | str, int, float, int, bool]]:
        """Topic, number, lag in records and tokens, uncommitted span, whether it is paused: the longest lags first."""
        rows = [
            (
                each.topic,
                each.partition,
                each.records,
                each.records * self._demand.tokens_per_record(each.model, each.source),
                each.uncommitted_span,
                each.paused,
            )
            for each in backlogs
        ]
        rows.sort(key=lambda row: (-row[2], row[0], str(row[1])))
        return rows
