"""A model server: what waits is merged into steps, one at a time, each as long as its curve says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from aggregator.scheduler.replica import StepReport
from loadtest.simulate.clock import Clock, Noise
from loadtest.simulate.merging import chosen
from loadtest.simulate.parcel import Parcel
from protos.modelserver.v1.curve import Curve


@dataclass(frozen=True)
class Engine:
    """What every pod runs: its curve, what one step may hold, and the server's own time before each (`overhead_s`)."""

    curve: Curve
    step_tokens: int = 16384
    step_queries: int = 1024
    longest_input: int = 512
    overhead_s: float = 0.0

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
    reply: Callable[[Parcel, StepReport], None]
    slowness: float = 1.0
    hangs: bool = False
    dead: bool = False
    waiting: list[Parcel] = field(default_factory=list[Parcel])
    running: list[Parcel] = field(default_factory=list[Parcel])
    idle_since_s: float = 0.0
    busy_s: float = 0.0
    steps: int = 0
    step_tokens: int = 0

    def arrive(self, parcel: Parcel) -> None:
        """A batch came."""
        if self.dead or parcel.over:
            return
        parcel.arrived_s = self.clock.now_s
        self.waiting.append(parcel)
        if not self.running:
            self.start()

    def start(self) -> None:
        """Begin the next step, if one can."""
        self.waiting = [parcel for parcel in self.waiting if not parcel.over]
        if not self.waiting or self.hangs or self.dead:
            return
        step = chosen(self.waiting, self.engine.step_tokens, self.engine.step_queries)
        if len(step) == len(self.waiting):
            self.waiting = []
        else:
            self.waiting = [parcel for parcel in self.waiting if parcel not in step]
        self.running = step
        tokens = sum(parcel.token_count for parcel in step)
        duration_s = self.slowness * self.engine.curve.time_s(tokens) * self.noise.factor(tokens)
        began_s = self.clock.now_s + self.engine.overhead_s
        self.clock.at(began_s + duration_s, self._end, (step, tokens, began_s, began_s - self.idle_since_s))

    def die(self) -> list[Parcel]:
        """Stop for good; returns what was here."""
        self.dead = True
        lost = self.running + self.waiting
        self.running, self.waiting = [], []
        return lost

    def _end(self, ended: tuple[list[Parcel], int, float, float]) -> None:
        step, tokens, began_s, idle_s = ended
        if self.dead:
            return
        now_s = self.clock.now_s
        self.busy_s += now_s - began_s
        self.steps += 1
        self.step_tokens += tokens
        self.running = []
        self.idle_since_s = now_s
        queued = sum(parcel.token_count for parcel in self.waiting)
        for parcel in step:
            staged_s = began_s - parcel.arrived_s
            self.reply(parcel, StepReport(tokens, now_s - began_s, queued, idle_s, staged_s))
        self.start()
