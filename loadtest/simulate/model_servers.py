"""Model servers: each merges what waits into steps, one at a time, each as long as its curve says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Protocol

from aggregator.scheduler.curve import Curve
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Priority
from loadtest.simulate.clock import Clock, Noise
from modelserver.scheduler.queued_batch import MergeLimits, RecentPriorities, aged_from_s, select


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """One batch, `over` once it came back or failed; `body` is the aggregator's own. Times are virtual seconds.

    `poisoned`: it holds an input that no step survives; `failed`: its step did not.
    """

    aggregator: int
    pod: int
    body: Any
    token_count: int
    query_count: int
    token_budget: int
    max_step_tokens: int
    max_shared_tokens: int
    isolated: bool
    timeout_s: float
    priority: Priority = Priority.INTERACTIVE
    arrived_s: float = 0.0
    over: bool = False
    poisoned: bool = False
    failed: bool = False

    @property
    def aged_from_s(self) -> float:
        return aged_from_s(self.arrived_s, self.timeout_s)


class Aggregator(Protocol):
    """One aggregator. Times are virtual seconds; pods are known by their numbers."""

    expired: int
    """Queries given up because their deadline passed before they were sent."""

    @property
    def held_tokens(self) -> int:
        """Tokens taken in and not answered."""
        ...

    def put(  # noqa: PLR0917
        self,
        now_s: float,
        arrived_s: float,
        deadline_s: float,
        token_count: int,
        priority: Priority = ...,
        text: bytes = ...,
    ) -> bool:
        """Take a query in; False when it is refused for lack of room. `text`: what equal queries have in common."""
        ...

    def due(self, now_s: float) -> tuple[Sequence[InFlightBatch], float]:
        """The batches to send now, and when to ask again."""
        ...

    @property
    def waits(self) -> bool:
        """Whether a further query can change nothing before that time, or before a batch comes back."""
        ...

    def done(self, batch: InFlightBatch, report: StepReport, now_s: float) -> Sequence[float]:
        """A batch came back; the times at which the queries came that it answers."""
        ...

    def failed(self, batch: InFlightBatch, now_s: float, jitter: float) -> None:
        """A batch was lost with its pod, or timed out."""
        ...

    def join(self, pod: int) -> None:
        """A pod is ready."""
        ...

    def leave(self, pod: int) -> None:
        """A pod takes no further batches; those that are out come back or fail."""
        ...

    def speeds(self) -> list[tuple[int, float]]:
        """Of each replica the token budget and the predicted seconds of a step that fills it."""
        ...

    def at_floor(self) -> bool:
        """Whether every budget is as small as it may be."""
        ...


@dataclass(frozen=True)
class Engine:
    """Every pod's engine: its curve, the most of one step, and the server's own time before each (`overhead_s`)."""

    curve: Curve
    step_tokens: int = 16384
    step_queries: int = 1024
    longest_input: int = 512
    overhead_s: float = 0.0

    @cached_property
    def limits(self) -> MergeLimits:
        """For the choice of the batches of a step."""
        return MergeLimits(self.step_tokens, self.step_queries)

    @cached_property
    def backlog_tokens(self) -> int:
        """What the server would have measured: the least size of batches with 99 % of the best throughput."""
        sizes = range(min(self.curve.saturation_point, self.step_tokens), self.step_tokens + 1)
        tokens_per_s = {size: size / (self.curve.time_s(size) + self.overhead_s) for size in sizes}
        enough = 0.99 * max(tokens_per_s.values())
        return next(size for size in sizes if tokens_per_s[size] >= enough)


@dataclass(slots=True, eq=False)
class Pod:
    """One server. `slowness` multiplies its step times; while it `hangs` no step begins; a `dead` one does nothing."""

    number: int
    engine: Engine
    clock: Clock
    noise: Noise
    reply: Callable[[InFlightBatch, StepReport], None]
    slowness: float = 1.0
    hangs: bool = False
    dead: bool = False
    waiting: list[InFlightBatch] = field(default_factory=list[InFlightBatch])
    running: tuple[InFlightBatch, ...] = ()
    idle_since_s: float = 0.0
    busy_s: float = 0.0
    steps: int = 0
    step_tokens: int = 0
    after_aged: bool = False
    recent: RecentPriorities = field(default_factory=RecentPriorities)

    def arrive(self, batch: InFlightBatch) -> None:
        """A batch came."""
        if self.dead or batch.over:
            return
        batch.arrived_s = self.clock.now_s
        self.waiting.append(batch)
        self.recent.came(batch.priority, batch.arrived_s)
        if not self.running:
            self.start()

    def start(self) -> None:
        """Begin the next step, if one can."""
        self.waiting = [batch for batch in self.waiting if not batch.over]
        if not self.waiting or self.hangs or self.dead:
            return
        selection = select(self.waiting, self.engine.limits, self.clock.now_s, after_aged=self.after_aged)
        assert selection is not None, "A batch waits and no step comes of it. This is a bug."
        self.after_aged = selection.aged
        step = selection.batches
        if len(step) == len(self.waiting):
            self.waiting = []
        else:
            self.waiting = [batch for batch in self.waiting if batch not in step]
        self.running = step
        tokens = sum(batch.token_count for batch in step)
        duration_s = self.slowness * self.engine.curve.time_s(tokens) * self.noise.factor()
        began_s = self.clock.now_s + self.engine.overhead_s
        self.clock.at(began_s + duration_s, self._end, (step, tokens, began_s, began_s - self.idle_since_s))

    def die(self) -> None:
        """Stop; what was here gets no answer."""
        self.dead = True
        self.running, self.waiting = (), []

    def _end(self, ended: tuple[tuple[InFlightBatch, ...], int, float, float]) -> None:
        step, tokens, began_s, idle_s = ended
        if self.dead:
            return
        now_s = self.clock.now_s
        self.busy_s += now_s - began_s
        self.steps += 1
        self.step_tokens += tokens
        self.running = ()
        self.idle_since_s = now_s
        if any(batch.poisoned for batch in step):
            self._failed(step)
        queued = sum(batch.token_count for batch in self.waiting)
        recent = frozenset(map(Priority, self.recent.at(now_s)))
        for batch in step:
            if batch in self.waiting:
                continue
            staged_s = began_s - batch.arrived_s
            report = StepReport(tokens, now_s - began_s, queued, idle_s, staged_s, recent_priorities=recent)
            self.reply(batch, report)
        self.start()

    def _failed(self, step: tuple[InFlightBatch, ...]) -> None:
        """Run the batches of a merged step again, each by itself; one by itself fails."""
        for batch in step:
            batch.failed = len(step) == 1
            batch.isolated = True
        if len(step) > 1:
            self.waiting[:0] = step


class Fleet:
    """Every pod that ever was, by its number; `ready` ones have a replica in each aggregator."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        noise: Noise,
        reply: Callable[[InFlightBatch, StepReport], None],
        aggregators: Sequence[Aggregator],
    ) -> None:
        self.pods: list[Pod] = []
        self.ready: dict[int, Pod] = {}
        self._engine, self._clock, self._noise, self._reply = engine, clock, noise, reply
        self.aggregators = aggregators
        self._starting: dict[int, Pod] = {}
        self._from_s: dict[int, float] = {}
        self._until_s: dict[int, float] = {}

    @property
    def count(self) -> int:
        """Pods that were requested and not sent away."""
        return len(self.ready) + len(self._starting)

    def start(self, ready_s: float) -> None:
        """Ask for one more pod, which serves from `ready_s` on; it costs from now on."""
        pod = Pod(len(self.pods), self._engine, self._clock, self._noise, self._reply)
        self.pods.append(pod)
        self._from_s[pod.number] = self._clock.now_s
        self._starting[pod.number] = pod
        if ready_s <= self._clock.now_s:
            self._join(pod)
        else:
            self._clock.at(ready_s, self._join, pod)

    def scale(self, replicas: int, ready_s: float) -> None:
        """Have this many pods: new ones serve from `ready_s` on; those that still start go first, then the youngest."""
        while self.count < replicas:
            self.start(ready_s)
        for _ in range(self.count - replicas):
            self.leave((self._starting or self.ready)[max(self._starting or self.ready)])

    def leave(self, pod: Pod) -> None:
        """A pod takes no further batches, and costs nothing from now on."""
        self._starting.pop(pod.number, None)
        self._until_s[pod.number] = self._clock.now_s
        if self.ready.pop(pod.number, None) is not None:
            for aggregator in self.aggregators:
                aggregator.leave(pod.number)

    def busy(self, until_s: float) -> tuple[float, float]:
        """Seconds that engines computed, and seconds that pods were there, up to a time."""
        there_s = sum(
            max(0.0, min(self._until_s.get(number, inf), until_s) - from_s) for number, from_s in self._from_s.items()
        )
        return sum(pod.busy_s for pod in self.pods), there_s

    def _join(self, pod: Pod) -> None:
        if self._starting.pop(pod.number, None) is None:
            return  # sent away while it started
        self.ready[pod.number] = pod
        pod.idle_since_s = self._clock.now_s
        for aggregator in self.aggregators:
            aggregator.join(pod.number)
