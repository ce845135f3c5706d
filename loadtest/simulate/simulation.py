"""One simulation: arrivals, aggregators, model servers and the network between them, in the order of time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from math import inf
from multiprocessing import get_context
from typing import Self, TypeVar

import numpy as np

from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Priority
from loadtest.simulate.clock import Clock, Noise, find
from loadtest.simulate.model_servers import Aggregator, Engine, Fleet, InFlightBatch, Pod
from loadtest.simulate.outcome import STRETCH_S, Outcome, Record, Stretches, summarise
from loadtest.simulate.scaling import Scaling
from loadtest.simulate.scenario import Fault, FaultKind, Policy, Scenario

T = TypeVar("T")


class Pool:
    """Cores to simulate on; use it as a context. What comes back does not depend on how many there are."""

    def __init__(self, processes: int | None = None, noted: Callable[[int, int], None] | None = None) -> None:
        """`processes`: one for each core when absent; 0 for none, the work is then done in this one.

        `noted` receives the number of finished and of requested pieces of work.
        """
        self._noted = noted or (lambda _done, _asked: None)
        self._done = self._asked = 0
        self._executor: ProcessPoolExecutor | None = None
        if processes is None:
            processes = len(os.sched_getaffinity(0))
        if processes:
            # A fresh interpreter each: this one may have threads, which a copy of it would lack.
            context = get_context("spawn")
            self._executor = ProcessPoolExecutor(processes, context, _leave_interrupts_to_the_parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(self, work: Callable[..., T], *columns: Iterable[object]) -> list[T]:
        """`work` of each row, in the order of the rows; it must be a function that other processes can import."""
        rows = list(zip(*columns, strict=True))
        self._asked += len(rows)
        if self._executor is None:
            return [self._note(work(*row)) for row in rows]
        futures = [self._executor.submit(work, *row) for row in rows]
        for future in as_completed(futures):
            self._note(future.result())
        return [future.result() for future in futures]

    def _note(self, result: T) -> T:
        self._done += 1
        self._noted(self._done, self._asked)
        return result


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_BEFORE_S = -1.0
"""When a backlog came: before the first arrival, so that its answers count by themselves."""
_TAIL_S = 120.0
"""How long after the last arrival answers are waited for."""


@dataclass(slots=True, eq=False)
class _Host:
    """One aggregator, and when it wants to be asked again."""

    aggregator: Aggregator
    wake_s: float = inf
    waits: bool = False


class Simulation:
    """A scenario under a policy; `run` it once. The same seed gives the same outcome, to the byte."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int) -> None:
        self._scenario, self._policy, self._seed = scenario, policy, seed
        self._rng = np.random.default_rng([seed, 1])
        self._noise = Noise(np.random.default_rng([seed, 2]), scenario.noise)
        self.clock = Clock()
        engine = Engine(
            find(scenario.curve), longest_input=scenario.lengths.longest, overhead_s=scenario.step_overhead_s
        )
        self._hosts = [_Host(policy.aggregator(number, scenario, engine)) for number in range(scenario.aggregators)]
        self.record = Record(scenario.warm_up_s)
        self.fleet = Fleet(engine, self.clock, self._noise, self._reply, [host.aggregator for host in self._hosts])
        self._curve = engine.curve
        self._out: dict[int, dict[int, InFlightBatch]] = {}
        for _ in range(scenario.pods):
            self.fleet.start(0.0)
        for fault in scenario.faults:
            self.clock.at(fault.at_s, self._begin, fault)
        self._scaling = (
            Scaling(scenario.autoscale, scenario.pods, scenario.duration_s, self.clock, self.fleet)
            if scenario.autoscale is not None
            else None
        )
        self._busy = (0.0, 0.0)
        self.clock.at(scenario.duration_s, self._stop_counting)
        if scenario.sample_s:
            self.clock.at(scenario.sample_s, self._sample)

    def run(self) -> Outcome:
        """Let the load pass, and say what came of it."""
        scenario, clock, record = self._scenario, self.clock, self.record
        times = scenario.arrivals.draw(scenario.duration_s, self._rng)
        lengths, texts = scenario.queries(len(times), self._rng)
        which = self._rng.integers(0, scenario.aggregators - scenario.apart, len(times)).tolist()
        intake_s, from_s, take = scenario.intake_s, scenario.warm_up_s, self._take
        self._queue_backlog()
        hosts, scaling, next_s, step = self._hosts, self._scaling, clock.next_s, clock.step
        stretches, ready, pod_tokens_per_s = None, self.fleet.ready, 0.0
        if scenario.calm_share < 1.0:
            stretches = record.stretches = Stretches(scenario.calm_share, times, lengths, self._rng)
            pod_tokens_per_s = self._policy.tokens_per_s(self._curve, float(lengths.mean()))
        until_s, left_out = 0.0, False
        for came_s, tokens, number, text in zip(times.tolist(), lengths.tolist(), which, texts, strict=True):
            now_s = came_s + intake_s
            while next_s() <= now_s:
                step()
            clock.now_s = now_s
            host = hosts[number]
            if scaling is not None:
                scaling.arrived(tokens)
            record.arrived += came_s >= from_s
            if stretches is not None and came_s >= until_s:
                stretch = int(came_s // STRETCH_S)
                until_s = (stretch + 1) * STRETCH_S
                left_out = stretches.leaves_out(stretch, self._held_tokens(), len(ready) * pod_tokens_per_s)
            if left_out:
                continue
            take(host, came_s, tokens, text)
        while next_s() <= scenario.duration_s + _TAIL_S:
            step()
        return self._outcome()

    def _held_tokens(self) -> int:
        return sum(host.aggregator.held_tokens for host in self._hosts)

    def _queue_backlog(self) -> None:
        for host in self._hosts[-1:] if self._scenario.apart else self._hosts:
            for tokens in self._scenario.lengths.draw(self._scenario.backlog, self._rng).tolist():
                host.aggregator.put(0.0, _BEFORE_S, inf, tokens, Priority.DEFAULT)
            if self._scenario.backlog:
                self.clock.at(0.0, self._dispatch, host)

    def _take(self, host: _Host, came_s: float, tokens: int, text: bytes) -> None:
        if not host.aggregator.put(
            self.clock.now_s, came_s, came_s + self._scenario.deadline_s, tokens, self._scenario.priority, text
        ):
            self.record.refused += came_s >= self.record.from_s
        elif not host.waits:
            self._dispatch(host)

    def _dispatch(self, host: _Host) -> None:
        """Send what is due, and note when to look again."""
        now_s = self.clock.now_s
        batches, wake_s = host.aggregator.due(now_s)
        for batch in batches:
            self._send(host, batch, now_s)
        host.waits = host.aggregator.waits
        if wake_s < host.wake_s or host.wake_s <= now_s:
            host.wake_s = wake_s
            if wake_s < inf:
                self.clock.at(wake_s, self._wake, (host, wake_s))

    def _wake(self, asked: tuple[_Host, float]) -> None:
        host, wake_s = asked
        if host.wake_s == wake_s:
            host.wake_s = inf
            self._dispatch(host)

    def _send(self, host: _Host, batch: InFlightBatch, now_s: float) -> None:
        self.record.sent(batch.token_count, batch.token_budget, now_s)
        pod = self.fleet.pods[batch.pod]
        self.clock.at(now_s + self._scenario.network_s * self._noise.delay(), pod.arrive, batch)
        if batch.timeout_s < inf:
            self.clock.at(now_s + batch.timeout_s, self._fail, (host, batch))
        self._out.setdefault(batch.pod, {})[id(batch)] = batch

    def _reply(self, batch: InFlightBatch, report: StepReport) -> None:
        delay_s = self._scenario.network_s * self._noise.delay()
        self.clock.at(self.clock.now_s + delay_s, self._answer, (batch, report))

    def _answer(self, came: tuple[InFlightBatch, StepReport]) -> None:
        batch, report = came
        if batch.over:
            return
        if batch.failed:
            self._fail((self._hosts[batch.aggregator], batch))
            return
        self._end(batch)
        host, now_s, record, scenario = self._hosts[batch.aggregator], self.clock.now_s, self.record, self._scenario
        answered = host.aggregator.done(batch, report, now_s)
        self._dispatch(host)  # the next batch first: these are answered while the engine runs it
        from_s, answered_s = record.from_s, now_s + scenario.complete_s
        if scenario.backlog and from_s <= now_s <= scenario.duration_s:
            record.backlog_answered += sum(came_s < 0.0 for came_s in answered)
        for came_s in answered:
            if came_s >= from_s:
                record.came_s.append(came_s)
                record.latency_s.append(answered_s - came_s)

    def _fail(self, failed: tuple[_Host, InFlightBatch]) -> None:
        host, batch = failed
        if batch.over:
            return
        self._end(batch)
        host.aggregator.failed(batch, self.clock.now_s, self._noise.uniform())
        self._dispatch(host)

    def _end(self, batch: InFlightBatch) -> None:
        batch.over = True
        del self._out[batch.pod][id(batch)]

    def _begin(self, fault: Fault) -> None:
        pod = self.fleet.pods[fault.pod]
        match fault.kind:
            case FaultKind.SLOW:
                pod.slowness = fault.factor
            case FaultKind.HANGS:
                pod.hangs = True
            case FaultKind.DIES:
                self._die(pod)
                return
        if fault.for_s < inf:
            self.clock.at(self.clock.now_s + fault.for_s, self._heal, pod)

    def _heal(self, pod: Pod) -> None:
        pod.slowness, pod.hangs = 1.0, False
        if not pod.running:
            pod.start()

    def _die(self, pod: Pod) -> None:
        """Its connections end at once; another pod starts in its host."""
        pod.die()
        self.fleet.leave(pod)
        for batch in list(self._out.get(pod.number, {}).values()):
            self._fail((self._hosts[batch.aggregator], batch))
        start_s = self._scenario.autoscale.start_s if self._scenario.autoscale is not None else 30.0
        self.fleet.start(self.clock.now_s + start_s)

    def _sample(self, _: object) -> None:
        now_s, aggregators = self.clock.now_s, [host.aggregator for host in self._hosts]
        speeds: Sequence[tuple[int, float]] = aggregators[0].speeds()
        self.record.trace.append(
            {
                "time_s": round(now_s, 6),
                "arrived": float(self.record.arrived),
                "held_tokens": float(self._held_tokens()),
                "token_budget": float(speeds[0][0]) if speeds else 0.0,
                "step_s": speeds[0][1] if speeds else 0.0,
                "ready": float(len(self.fleet.ready)),
                "replicas": float(self._scaling.hpa.replicas if self._scaling is not None else self._scenario.pods),
                "required": self._scaling.required if self._scaling is not None else 0.0,
            }
        )
        if now_s < self._scenario.duration_s:
            self.clock.at(now_s + self._scenario.sample_s, self._sample)

    def _stop_counting(self, _: object) -> None:
        """The work after the load's end does not count as a part of its load."""
        self._busy = self.fleet.busy(self._scenario.duration_s)

    def _outcome(self) -> Outcome:
        scenario = self._scenario
        return summarise(
            self.record,
            names=(scenario.name, self._policy.label, self._seed),
            expired=sum(host.aggregator.expired for host in self._hosts),
            slo_s=scenario.slo_s,
            seconds=scenario.duration_s - scenario.warm_up_s,
            busy=self._busy,
        )


def simulate(scenario: Scenario, policy: Policy, seed: int = 1) -> Outcome:
    """Run one scenario under one policy."""
    return Simulation(scenario, policy, seed).run()
