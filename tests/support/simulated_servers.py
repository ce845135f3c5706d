"""Simulated model servers behind the real dispatcher, for tests that say what comes when, and which server fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import numpy as np

from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.dispatcher import Batch, Dispatcher
from aggregator.scheduler.replica import ReplicaPolicy, StepReport
from aggregator.scheduler.work_item import Priority, Query, WorkItem
from loadtest.simulate.clock import Clock, Noise, slower
from loadtest.simulate.core_aggregator import in_flight
from loadtest.simulate.model_servers import Engine, InFlightBatch, Pod

CURVE = Curve(floor_s=0.010, fixed_s=0.004, per_token_s=1e-5, saturation_point=600, rule=Rule.HINGE, max_tokens=8192)
"""A step takes 10 ms up to 600 tokens, then 10 µs more per token."""

RESTART_S = 0.5
_START_S = 100.0


def ignore(_: object) -> None:
    """What a query's index is good for when nobody asks for it."""


def _unconnected(batch: InFlightBatch, report: StepReport) -> None:
    raise AssertionError(f"no simulation takes {report} of {batch}")


class Server(Pod):
    """A model server and what was seen of it. A batch that `kills` it takes it away for a while, unless it `survives`.

    `idle_s`: by the time at which a step began, how long the engine had been idle before it.
    """

    def __init__(self, name: str, slowness: float = 1.0, *, survives: bool = False) -> None:
        clock, noise = Clock(), Noise(np.random.default_rng(0), 0.0)
        super().__init__(0, Engine(CURVE), clock, noise, _unconnected, slowness)
        self.name = name
        self.survives = survives
        self.kills: Callable[[Batch], bool] = lambda _: False
        self.deaths = 0
        self.idle_s: dict[float, float] = {}
        self.sent: list[tuple[float, Batch]] = []

    @property
    def measured(self) -> Curve:
        """Its own curve, as it would measure it at start."""
        return slower(self.engine.curve, self.slowness)


class Simulation:
    """Queries in, answers out; `latency_s` of each answered query by its index, and those that expired or were late.

    `timer_s`: how much later than asked for the dispatcher is woken, as by an event loop.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        servers: Iterable[Server],
        *,
        seed: int = 1,
        network_s: float = 0.001,
        timer_s: float = 0.0,
    ) -> None:
        self.dispatcher = dispatcher
        self.servers = {server.name: server for server in servers}
        self.clock = Clock()
        self.clock.now_s = _START_S
        self.latency_s: dict[int, float] = {}
        self.refused: list[Query] = []
        self.poison: list[Query] = []
        self.asked = 0
        self._network_s = network_s
        self._timer_s = timer_s
        self._noise = Noise(np.random.default_rng(seed), 0.02)
        self._out: dict[str, InFlightBatch] = {}
        self._wake_s = inf
        for server in self.servers.values():
            server.clock, server.noise, server.reply = self.clock, self._noise, self._stepped
            server.idle_since_s = _START_S

    @property
    def now_s(self) -> float:
        return self.clock.now_s

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do something at a time, then send the batches that are due."""
        self.clock.at(time_s, lambda _: act())

    def run(self, until_s: float = inf) -> None:
        """Let time pass until then, or until nothing is left to happen."""
        clock = self.clock
        while (next_s := clock.next_s()) <= until_s and next_s < inf:
            clock.step()
            self._dispatch()
        clock.now_s = max(clock.now_s, until_s) if until_s < inf else clock.now_s

    def put(
        self, tokens: int, priority: Priority = Priority.DEFAULT, *, within_s: float = inf, tenant: str = ""
    ) -> int:
        """Queue a query now; returns its index."""
        self.asked += 1
        query = Query(None, self.asked, priority, tenant, self.now_s, self.now_s + within_s)
        self.dispatcher.queue.put(query, self.asked.to_bytes(4, "little") * tokens, tokens)
        return self.asked

    def _dispatch(self) -> None:
        now_s = self.now_s
        due = self.dispatcher.due(now_s, max_items=1024)
        for query in due.expired + due.late:
            query.item = None
            self.refused.append(query)
        for batch in due.batches:
            server = self.servers[batch.replica.name]
            server.sent.append((now_s, batch))
            sent = self._out[batch.batch_id] = in_flight(batch, 0, server.number)
            self.clock.at(now_s + self._travel_s(), server.arrive, sent)
            self.clock.at(now_s + batch.timeout_s, self._fail, sent)
        if due.wake_s < inf and due.wake_s != self._wake_s:
            assert due.wake_s > now_s, "The dispatcher asks to be woken at once."
            self._wake_s = due.wake_s
            self.clock.at(due.wake_s + self._timer_s, ignore)

    def _travel_s(self) -> float:
        return self._network_s * self._noise.delay()

    def _stepped(self, sent: InFlightBatch, report: StepReport) -> None:
        batch: Batch = sent.body
        server = self.servers[batch.replica.name]
        server.idle_s[self.now_s - report.step_duration_s] = report.idle_before_s
        if not server.kills(batch):
            self.clock.at(self.now_s + self._travel_s(), self._reply, (sent, report))
        elif server.survives:
            self._fail(sent)
        else:
            self._die(server)

    def _die(self, server: Server) -> None:
        """Its replica goes, what is out there fails, and a while later another server stands at the same address."""
        server.deaths += 1
        server.die()
        replica = self.dispatcher.replicas.pop(server.name, None)
        if replica is None:
            return
        for sent in list(self._out.values()):
            if sent.body.replica.name == server.name:
                self._fail(sent)

        def again() -> None:
            server.dead = False
            fresh = type(replica)(replica.name, server.measured, replica.token_budget, ReplicaPolicy())
            self.dispatcher.replicas[replica.name] = fresh

        self.at(self.now_s + RESTART_S, again)

    def _reply(self, came: tuple[InFlightBatch, StepReport]) -> None:
        sent, report = came
        if self._out.pop(sent.body.batch_id, None):
            sent.over = True
            self.dispatcher.done(sent.body, report, self.now_s)
            for query in _alive(sent.body.items):
                query.item = None
                self.latency_s[query.index] = self.now_s - query.enqueued_s

    def _fail(self, sent: InFlightBatch) -> None:
        if self._out.pop(sent.body.batch_id, None):
            sent.over = True
            for query in _alive(self.dispatcher.failed(sent.body, self.now_s, self._noise.uniform())):
                query.item = None
                self.poison.append(query)


def _alive(items: Iterable[WorkItem]) -> list[Query]:
    return [query for item in items for query in item.waiters if not query.done]
