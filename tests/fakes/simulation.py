"""A pool of model servers in virtual time, with networks that take their time, driven by the real dispatcher."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from math import inf

from aggregator.scheduler.dispatcher import Batch, Dispatcher
from aggregator.scheduler.replica import ReplicaPolicy, StepReport
from aggregator.scheduler.work_item import Entry, Priority, Query
from protos.modelserver.v1.curve import Curve, Rule

CURVE = Curve(floor_s=0.010, fixed_s=0.004, per_token_s=1e-5, saturation_point=600, rule=Rule.HINGE, max_tokens=8192)
"""A step takes 10 ms up to 600 tokens, then 10 µs more per token."""

RESTART_S = 0.5

Asked = tuple[Batch, float]
"""What a server was sent, and when it came."""


def ignore(_: object) -> None:
    """What a query's index is good for when nobody asks for it."""


@dataclass(slots=True)
class Server:
    """One model server: a step at a time, in order of arrival.

    A batch that `kills` it fails and takes it away for a while, unless it `survives`.
    """

    name: str
    slowness: float = 1.0
    curve: Curve = CURVE
    hangs: bool = False
    kills: Callable[[Batch], bool] = lambda _: False
    survives: bool = False
    deaths: int = 0
    waiting: deque[Asked] = field(default_factory=deque[Asked])
    running: bool = False
    ended_s: float = 0.0
    idle_s: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    sent: list[tuple[float, Batch]] = field(default_factory=list[tuple[float, Batch]])

    @property
    def measured(self) -> Curve:
        """Its own curve, as it would measure it at start."""
        curve, factor = self.curve, self.slowness
        return replace(
            curve,
            floor_s=curve.floor_s * factor,
            fixed_s=curve.fixed_s * factor,
            per_token_s=curve.per_token_s * factor,
        )


class Simulation:
    """Queries in, answers out; `latency_s` of each answered query by its index, and those that expired or were late."""

    def __init__(
        self, dispatcher: Dispatcher, servers: Iterable[Server], *, seed: int = 1, network_s: float = 0.001
    ) -> None:
        self.dispatcher = dispatcher
        self.servers = {server.name: server for server in servers}
        self.now_s = 100.0
        self.latency_s: dict[int, float] = {}
        self.refused: list[Query] = []
        self.poison: list[Query] = []
        self._network_s = network_s
        self._noise = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._under_way: dict[str, tuple[Server, Batch]] = {}
        self._order = 0
        self._wake_s = inf
        self.asked = 0

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do something at a time, then look for batches that are due."""
        self._order += 1
        heappush(self._events, (time_s, self._order, act))

    def run(self, until_s: float = inf) -> None:
        """Let time pass until then, or until nothing is left to happen."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act = heappop(self._events)
            act()
            self._look()
        self.now_s = max(self.now_s, until_s) if until_s < inf else self.now_s

    def put(
        self, tokens: int, priority: Priority = Priority.DEFAULT, *, within_s: float = inf, tenant: str = ""
    ) -> int:
        """Queue a query now; returns its index."""
        self.asked += 1
        query = Query(None, self.asked, priority, tenant, self.now_s, self.now_s + within_s)
        self.dispatcher.queue.put(query, self.asked.to_bytes(4, "little") * tokens, tokens)
        return self.asked

    def _look(self) -> None:
        due = self.dispatcher.due(self.now_s, max_entries=1024)
        for query in due.expired + due.late:
            query.done = True
            self.refused.append(query)
        for batch in due.batches:
            server = self.servers[batch.replica.name]
            server.sent.append((self.now_s, batch))
            arrival_s = self.now_s + self._travel_s()
            self._under_way[batch.batch_id] = (server, batch)
            self.at(arrival_s, partial(self._arrive, server, (batch, arrival_s)))
            self.at(self.now_s + batch.timeout_s, partial(self._fail, batch))
        if due.wake_s < inf and due.wake_s != self._wake_s:
            assert due.wake_s > self.now_s, "The dispatcher asks to be woken at once."
            self._wake_s = due.wake_s
            self.at(due.wake_s, lambda: None)

    def _travel_s(self) -> float:
        return self._network_s * (0.5 + self._noise.expovariate(2.0))

    def _arrive(self, server: Server, asked: Asked) -> None:
        server.waiting.append(asked)
        if not server.running:
            self._step(server)

    def _step(self, server: Server) -> None:
        if not server.waiting or server.hangs:
            return
        batch, arrived_s = server.waiting.popleft()
        duration_s = server.measured.time_s(batch.token_count) * self._noise.uniform(0.97, 1.03)
        idle_s = self.now_s - server.ended_s
        server.running = True
        server.idle_s.append((self.now_s, idle_s))
        report = StepReport(batch.token_count, duration_s, 0, idle_s, self.now_s - arrived_s)
        self.at(self.now_s + duration_s, lambda: self._finish(server, batch, report))
        self.at(self.now_s + duration_s, lambda: self._next_step(server))

    def _next_step(self, server: Server) -> None:
        server.running, server.ended_s = False, self.now_s
        self._step(server)

    def _finish(self, server: Server, batch: Batch, report: StepReport) -> None:
        if server.kills(batch):
            if server.survives:
                self._fail(batch)
            else:
                self._die(server)
            return
        queued = sum(batch.token_count for batch, _ in server.waiting)
        self.at(self.now_s + self._travel_s(), lambda: self._reply(batch, replace(report, queued_tokens=queued)))

    def _die(self, server: Server) -> None:
        """Its replica goes, what is out there fails, and a while later another server stands at the same address."""
        server.deaths += 1
        server.waiting.clear()
        replica = self.dispatcher.replicas.pop(server.name, None)
        if replica is None:
            return
        for where, batch in list(self._under_way.values()):
            if where is server:
                self._fail(batch)
        again = type(replica)(replica.name, server.measured, replica.token_budget, ReplicaPolicy())
        self.at(self.now_s + RESTART_S, lambda: self.dispatcher.replicas.update({replica.name: again}))

    def _reply(self, batch: Batch, report: StepReport) -> None:
        if self._under_way.pop(batch.batch_id, None):
            self.dispatcher.done(batch, report, self.now_s)
            for query in _alive(batch.entries):
                query.done = True
                self.latency_s[query.index] = self.now_s - query.enqueued_s

    def _fail(self, batch: Batch) -> None:
        if self._under_way.pop(batch.batch_id, None):
            for query in _alive(self.dispatcher.failed(batch, self.now_s, self._noise.random())):
                query.done = True
                self.poison.append(query)


def _alive(entries: Iterable[Entry]) -> list[Query]:
    return [query for entry in entries for query in entry.waiters if not query.done]
