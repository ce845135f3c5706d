"""Generate: step after step, every running request gets a token, until all are done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np

from loadtest.lab.generation.decode import DecodeCurve
from loadtest.lab.generation.limits import Limit
from loadtest.lab.generation.work import Floats, Work


@dataclass(frozen=True, slots=True)
class Server:
    """A GPU and its way of batching.

    `capacity_tokens`: what its cache holds. `continuous`: whether a request that is done makes room for the next one in
    the next step; else the whole batch runs until its longest is done, at the price of a full one (Daniel et al.).
    """

    curve: DecodeCurve
    capacity_tokens: float = inf
    continuous: bool = True


@dataclass(frozen=True, slots=True)
class Generated:
    """What came of it; times in seconds, arrays in the order of arrival.

    `step_s` is the mean time between a request's tokens, `running` the mean of requests in a step; `overflows` counts
    steps that found the cache full, each of which sent the youngest requests back to be read again.
    """

    seconds: float
    tokens: int
    steps: int
    step_s: float
    running: float
    overflows: int
    wait_s: Floats
    latency_s: Floats

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class _Engine:
    def __init__(self, server: Server, limit: Limit, work: Work) -> None:
        self.server, self.limit, self.work = server, limit, work
        self.now_s = 0.0
        self.step = self.tokens = self.cached = self.overflows = self.next = 0
        self.busy_s = self.request_s = 0.0
        self.waiting: deque[int] = deque()
        self.left = list(work.outputs)  # tokens still to come, of those that do not run
        self.ends: list[tuple[int, int]] = []  # (the step after which it is done, request), of those that run
        self.order: dict[int, int] = {}  # of those that run, by when they began: the step after which each is done
        self.batch = 0
        self.began_s = [-1.0] * len(work)
        self.ended_s = [0.0] * len(work)

    def run(self) -> Generated:
        while self.next < len(self.work) or self.waiting or self.order:
            self._arrive()
            self._step(self._begin())
            self._end()
        work, arrived_s = self.work, np.array(self.work.arrived_s)
        return Generated(
            seconds=self.now_s - work.arrived_s[0],
            tokens=sum(work.outputs),
            steps=self.step,
            step_s=self.request_s / max(1, self.tokens),
            running=self.request_s / max(1e-12, self.busy_s),
            overflows=self.overflows,
            wait_s=np.array(self.began_s) - arrived_s,
            latency_s=np.array(self.ended_s) - arrived_s,
        )

    def _arrive(self) -> None:
        arrived_s = self.work.arrived_s
        if not self.waiting and not self.order:
            self.now_s = max(self.now_s, arrived_s[self.next])
        while self.next < len(arrived_s) and arrived_s[self.next] <= self.now_s:
            self.waiting.append(self.next)
            self.next += 1

    def _begin(self) -> int:
        """Let requests in; returns the prompt tokens to read for them."""
        waiting, order, work = self.waiting, self.order, self.work
        if not self.server.continuous and order:
            return 0
        limit = max(1, self.limit.limit(len(waiting), len(order), self.now_s))
        read = 0
        while waiting and len(order) < limit:
            one = waiting[0]
            prompt = work.prompts[one] + work.outputs[one] - self.left[one]
            if order and self.cached + prompt + len(order) >= self.server.capacity_tokens:
                break
            waiting.popleft()
            if self.began_s[one] < 0.0:
                self.began_s[one] = self.now_s
            end = self.step + self.left[one]
            order[one] = end
            heappush(self.ends, (end, one))
            self.cached += prompt
            read += prompt
        self.batch = len(order) if self.server.continuous else max(self.batch, len(order))
        return read

    def _step(self, read: int) -> None:
        running = len(self.order)
        duration_s = self.server.curve.time_s(self.batch, read)
        self.step += 1
        self.now_s += duration_s
        self.busy_s += duration_s
        self.request_s += duration_s * running
        self.tokens += running
        self.cached += running
        self.limit.stepped(running, duration_s)

    def _end(self) -> None:
        ends, order, work = self.ends, self.order, self.work
        while ends and ends[0][0] <= self.step:
            end, one = heappop(ends)
            if order.get(one) != end:
                continue  # it was sent back since
            del order[one]
            self.ended_s[one] = self.now_s
            self.cached -= work.prompts[one] + work.outputs[one]
            self.limit.finished(work.prompts[one] + work.outputs[one])
        if not order:
            self.batch = 0
        if self.cached > self.server.capacity_tokens:
            self.overflows += 1
        while self.cached > self.server.capacity_tokens and len(order) > 1:
            one, end = order.popitem()
            self.left[one] = end - self.step
            self.cached -= work.prompts[one] + work.outputs[one] - self.left[one]
            self.waiting.appendleft(one)


def generate(server: Server, limit: Limit, work: Work) -> Generated:
    """Run the work to its end. The same work gives the same outcome."""
    return _Engine(server, limit, work).run()
