"""A generating engine in virtual time: step after step, every running request gets a token, until all are done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np
import numpy.typing as npt

from loadtest.simulate.generation.limits import Limit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """Requests in the order of arrival: seconds, prompt tokens, output tokens; three lists of one length."""

    arrived_s: list[float]
    prompts: list[int]
    outputs: list[int]

    def __len__(self) -> int:
        return len(self.arrived_s)


def at_once(prompts: Ints, outputs: Ints) -> Work:
    """All requests come at time 0."""
    return Work([0.0] * len(outputs), prompts.tolist(), outputs.tolist())


def poisson(rate: float, prompts: Ints, outputs: Ints, rng: np.random.Generator) -> Work:
    """Requests come at random, `rate` a second in the mean."""
    arrived_s = np.cumsum(rng.exponential(1.0 / rate, len(outputs)))
    return Work(arrived_s.tolist(), prompts.tolist(), outputs.tolist())


def around(mean: float, spread: float, count: int, rng: np.random.Generator, longest: int = 2048) -> Ints:
    """Lognormal lengths of that mean, with a standard deviation of `spread` times the mean; 0 for all of one length."""
    sigma = np.sqrt(np.log1p(spread**2))
    drawn = mean * np.exp(sigma * rng.standard_normal(count) - sigma**2 / 2.0)
    lengths: Ints = np.clip(np.rint(drawn), 1, longest).astype(np.int64)
    return lengths


def exponential(mean: float, most: int, count: int, rng: np.random.Generator) -> Ints:
    """Exponential lengths of that mean of which only those up to `most` are kept (Daniel et al.'s data sets)."""
    # The inverse of the distribution's function, on the part of it that lies below `most`.
    drawn = -mean * np.log1p(-rng.random(count) * -np.expm1(-most / mean))
    lengths: Ints = np.clip(np.ceil(drawn), 1, most).astype(np.int64)
    return lengths


@dataclass(frozen=True, slots=True)
class DecodeCurve:
    """Seconds of a step: `fixed_s`, plus a time for each running request and each prompt token (Pang et al., D(b))."""

    fixed_s: float
    per_request_s: float
    per_prompt_token_s: float = 0.0

    def time_s(self, running: int, prompt_tokens: int = 0) -> float:
        """Seconds of a step in which this many requests each get a token, and this many prompt tokens are read."""
        return self.fixed_s + self.per_request_s * running + self.per_prompt_token_s * prompt_tokens

    def slower(self, factor: float) -> DecodeCurve:
        """The same shape, `factor` times as long."""
        return DecodeCurve(self.fixed_s * factor, self.per_request_s * factor, self.per_prompt_token_s * factor)


def through(first: tuple[int, float], second: tuple[int, float]) -> DecodeCurve:
    """The line through two points (requests, seconds). Raises ValueError unless it rises from a positive start."""
    (few, few_s), (many, many_s) = first, second
    per_request_s = (many_s - few_s) / (many - few)
    fixed_s = few_s - per_request_s * few
    if per_request_s <= 0.0 or fixed_s <= 0.0:
        raise ValueError(f"no curve of a step goes through {first} and {second}")
    return DecodeCurve(fixed_s, per_request_s)


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

    `step_s` is the mean time between a request's tokens, `running` the mean of requests in a step.
    """

    seconds: float
    tokens: int
    steps: int
    step_s: float
    running: float
    wait_s: Floats
    latency_s: Floats
    """From a request's arrival to its last token."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class _Engine:
    def __init__(self, server: Server, limit: Limit, work: Work) -> None:
        self.server, self.limit, self.work = server, limit, work
        self.now_s = 0.0
        self.step = self.tokens = self.cached = self.next = 0
        self.busy_s = self.request_s = 0.0
        self.waiting: deque[int] = deque()
        self.left = list(work.outputs)  # tokens still to come, of those that do not run
        self.ends: list[tuple[int, int]] = []  # (the step after which it is done, request), of those that run
        self.order: dict[int, int] = {}  # of those that run, by when they began: the step after which each is done
        self.batch = 0
        self.began_s = [-1.0] * len(work)
        self.ended_s = [-1.0] * len(work)

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
        while self.cached > self.server.capacity_tokens and len(order) > 1:
            one, end = order.popitem()
            self.left[one] = end - self.step
            self.cached -= work.prompts[one] + work.outputs[one] - self.left[one]
            self.waiting.appendleft(one)


def generate(server: Server, limit: Limit, work: Work) -> Generated:
    """Run the work to its end. The same work gives the same outcome."""
    return _Engine(server, limit, work).run()
