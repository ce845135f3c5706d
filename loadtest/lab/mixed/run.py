"""Requests on servers in virtual time: by clients that send the next one when the last one is done, or all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

import numpy as np

from loadtest.lab.mixed.policies import Floor, Policy
from loadtest.lab.mixed.server import Apart, Engine, Request, Server, Step, Task


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers for both tasks under one policy, or `embed` and `generate` servers for one task each."""

    name: str
    both: int = 0
    embed: int = 0
    generate: int = 0
    policy: type[Policy] | Apart = Floor


def split(embed: int, generate: int) -> Fleet:
    """Servers that only embed, and servers that only generate."""
    return Fleet(f"split {embed}:{generate}", embed=embed, generate=generate)


@dataclass(slots=True)
class Record:
    """Outcome of a run in virtual seconds: how long each request took, by task.

    `between_s`: times between two tokens, each with the number of sequences. `busy`: the share of the servers' time in
    which a step ran.
    """

    latency_s: dict[Task, list[float]] = field(default_factory=lambda: {task: [] for task in Task})
    first_token_s: list[float] = field(default_factory=list[float])
    between_s: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    seconds: float = 0.0
    busy: float = 0.0

    def per_s(self, task: Task) -> float:
        """Requests of a task that ended in a second."""
        return len(self.latency_s[task]) / self.seconds

    def percentile_s(self, task: Task, percent: float) -> float:
        """Of the latencies; 0 without any."""
        return float(np.percentile(self.latency_s[task] or [0.0], percent))

    def first_percentile_s(self, percent: float) -> float:
        """Of the times to the first token; 0 without any."""
        return float(np.percentile(self.first_token_s or [0.0], percent))

    def between_percentile_s(self, percent: float) -> float:
        """Of the times between tokens; 0 without any."""
        if not self.between_s:
            return 0.0
        gaps, counts = map(np.array, zip(*sorted(self.between_s), strict=True))
        return float(gaps[np.searchsorted(np.cumsum(counts), percent / 100 * counts.sum())])


class Run:
    """A fleet at work."""

    def __init__(
        self,
        fleet: Fleet,
        engine: Engine,
        embedding_engine: Engine | None = None,
        next_request: Callable[[], Request] | None = None,
        from_s: float = 0.0,
    ) -> None:
        """`embedding_engine`: of servers that only embed, where they differ. `next_request`: for a client that is done.

        What ends before `from_s` is not recorded.
        """
        both = [Server(engine, _policy(fleet)) for _ in range(fleet.both)]
        embed = [Server(embedding_engine or engine, Floor()) for _ in range(fleet.embed)]
        generate = [Server(engine, Floor()) for _ in range(fleet.generate)]
        self._servers = {Task.EMBED: both or embed, Task.GENERATE: both or generate}
        self._unfinished = dict.fromkeys([*both, *embed, *generate], 0)
        self._running: dict[Server, tuple[Step, float]] = {}
        self._last_token_s: dict[Server, float] = {}
        self._events: list[tuple[float, int, Server | Request]] = []
        self._order = count()
        self._next_request = next_request
        self._from_s = from_s
        self._now_s = self._busy_s = 0.0
        self._record = Record()

    def send(self, request: Request) -> None:
        heappush(self._events, (request.arrived_s, next(self._order), request))

    def until(self, end_s: float) -> Record:
        """Let time pass to `end_s`, or until nothing is left to do."""
        while self._events and self._events[0][0] <= end_s:
            self._now_s, _, what = heappop(self._events)
            if isinstance(what, Request):
                self._arrive(what)
            else:
                self._end_step(what)
        record = self._record
        record.seconds = (end_s if self._events else self._now_s) - self._from_s
        record.busy = self._busy_s / (record.seconds * len(self._unfinished))
        return record

    def _arrive(self, request: Request) -> None:
        """Give it to the server with the fewest requests."""
        server = min(self._servers[request.task], key=self._unfinished.__getitem__)
        self._unfinished[server] += 1
        server.put(request)
        if server not in self._running:
            self._begin_step(server)

    def _begin_step(self, server: Server) -> None:
        step = server.step()
        self._running[server] = step, self._now_s
        heappush(self._events, (self._now_s + step.seconds, next(self._order), server))

    def _end_step(self, server: Server) -> None:
        step, began_s = self._running.pop(server)
        self._unfinished[server] -= len(step.finished)
        self._note(server, step, began_s)
        if self._next_request is not None:
            for _ in step.finished:
                request = self._next_request()
                request.arrived_s = self._now_s
                self._arrive(request)
        if server.has_work and server not in self._running:
            self._begin_step(server)

    def _note(self, server: Server, step: Step, began_s: float) -> None:
        now_s, record = self._now_s, self._record
        last_s = self._last_token_s.get(server, began_s)
        if step.decoding or step.first:
            self._last_token_s[server] = now_s
        if now_s < self._from_s:
            return
        self._busy_s += now_s - max(began_s, self._from_s)
        if step.decoding:
            record.between_s.append((now_s - last_s, step.decoding))
        record.first_token_s += [now_s - request.arrived_s for request in step.first]
        for request in step.finished:
            record.latency_s[request.task].append(now_s - request.arrived_s)


def _policy(fleet: Fleet) -> Policy | Apart:
    return fleet.policy if isinstance(fleet.policy, Apart) else fleet.policy()


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Each client sends its next request when its last one is done."""

    clients: int
    warm_up_s: float
    seconds: float

    def run(
        self, fleet: Fleet, engine: Engine, requests: Iterator[Request], embedding_engine: Engine | None = None
    ) -> Record:
        """Without the warm-up."""
        run = Run(fleet, engine, embedding_engine, requests.__next__, self.warm_up_s)
        for _ in range(self.clients):
            run.send(next(requests))
        return run.until(self.warm_up_s + self.seconds)


def all_of(fleet: Fleet, engine: Engine, requests: Sequence[Request], embedding_engine: Engine | None = None) -> Record:
    """Requests at their times, to their ends."""
    run = Run(fleet, engine, embedding_engine)
    for request in requests:
        run.send(request)
    return run.until(inf)
