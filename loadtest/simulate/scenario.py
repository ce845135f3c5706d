"""The subject of a simulation: the load, the servers, the network, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf

import numpy as np

from aggregator.scheduler.curve import Curve
from aggregator.scheduler.work_item import Priority
from aggregator.wings.sla.controller import SlaBudgetController, SlaGoal, SloTracker
from aggregator.wings.subsets.active_replicas import ActiveReplicas
from loadtest.simulate.core_aggregator import POISON, CoreAggregator, Mechanism
from loadtest.simulate.load import Arrivals, Ints, Lengths
from loadtest.simulate.model_servers import Aggregator, Engine
from loadtest.simulate.paper_sla import PaperBudgetController
from loadtest.simulate.plain_aggregator import Closing, PlainAggregator
from loadtest.simulate.scaling import Autoscale


class FaultKind(StrEnum):
    """The fault of a pod."""

    SLOW = "slow"
    HANGS = "hangs"
    DIES = "dies"


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_s` on, for `for_s` seconds, something is wrong with a pod; one that dies starts again at once."""

    at_s: float
    pod: int
    kind: FaultKind
    factor: float = 3.0
    for_s: float = inf


@dataclass(frozen=True, slots=True)
class Scenario:
    """One case. Latency is counted from arrival to answer; `deadline_s` is how long a caller waits.

    `intake_s`: receiving, counting tokens; `network_s`: mean of one way to a pod; `complete_s`: answering;
    `step_overhead_s`: of a model server, beside each step; `noise`: how far steps of as many tokens scatter, as a
    share. `backlog`: queries of the default class without deadline that wait at each aggregator from the start;
    `apart`: at the last one alone, where nothing else arrives. `priority` is the class of those that arrive.
    `texts`: how many different texts are asked, by Zipf's law with the exponent 1; 0: no two are equal. `poison`: the
    share of queries that no step survives.
    `calm_share`: of the stretches in which the pods have little to do, how many are simulated and stand for the rest.
    """

    name: str
    arrivals: Arrivals
    duration_s: float
    curve: str | Curve = "a100-like"
    lengths: Lengths = field(default_factory=Lengths)
    pods: int = 1
    aggregators: int = 1
    slo_s: float = 0.2
    deadline_s: float = inf
    intake_s: float = 0.001
    network_s: float = 0.0005
    complete_s: float = 0.001
    step_overhead_s: float = 0.0
    noise: float = 0.05
    warm_up_s: float = 2.0
    max_held_tokens: int = 500_000
    backlog: int = 0
    apart: bool = False
    priority: Priority = Priority.INTERACTIVE
    texts: int = 0
    poison: float = 0.0
    faults: tuple[Fault, ...] = ()
    autoscale: Autoscale | None = None
    sample_s: float = 0.0
    calm_share: float = 1.0

    def queries(self, count: int, rng: np.random.Generator) -> tuple[Ints, list[bytes]]:
        """Lengths in tokens, int64 [count], and texts: empty for one that no other equals, `POISON` for poison."""
        texts = [b""] * count
        if self.texts:
            shares = 1.0 / np.arange(1, self.texts + 1)
            which = rng.choice(self.texts, size=count, p=shares / shares.sum())
            lengths = self.lengths.draw(self.texts, rng)[which]
            texts = [int(place).to_bytes(4, "little") for place in which]
        else:
            lengths = self.lengths.draw(count, rng)
        if self.poison:
            for place in np.flatnonzero(rng.random(count) < self.poison):
                texts[place] = POISON
        return lengths, texts


class Kind(StrEnum):
    """A way of batching."""

    OURS = "ours"
    SLA_PAPER = "sla_paper"
    STATIC_TOKENS = "static_tokens"
    REQUEST_COUNT = "request_count"
    TIME_WINDOW = "time_window"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class Policy:
    """A way of batching with its settings; those that a kind does not know are ignored.

    `tokens`: the budget of static_tokens, an override of ours. `size`, `wait_s`: of request_count; `wait_s` is the
    window of time_window. `depth`: batches at a pod, and `margin_s`: how long before its deadline a query is given up,
    for all but the two that run the core. `sla`: whether those follow the scenario's latency target; `without`: the
    mechanisms of the core that are switched off.
    """

    kind: Kind
    tokens: int = 0
    size: int = 32
    wait_s: float = 0.0
    depth: int = 2
    margin_s: float = 0.0
    sla: bool = True
    without: frozenset[Mechanism] = frozenset()

    @property
    def label(self) -> str:
        """The policy with the settings that matter to it."""
        match self.kind:
            case Kind.STATIC_TOKENS:
                return f"static_tokens({self.tokens}{self._rest}"
            case Kind.REQUEST_COUNT:
                return f"request_count({self.size}, {1000 * self.wait_s:g} ms{self._rest}"
            case Kind.TIME_WINDOW:
                return f"time_window({1000 * self.wait_s:g} ms{self._rest}"
            case Kind.SEQUENTIAL:
                return f"sequential(depth {self.depth})"
            case Kind.OURS | Kind.SLA_PAPER:
                return self.kind.value + (f"({self.tokens})" if self.tokens else "") + self._changed

    @property
    def _rest(self) -> str:
        margin = f", margin {1000 * self.margin_s:g} ms" if self.margin_s else ""
        return f", depth {self.depth}{margin})"

    @property
    def _changed(self) -> str:
        return "".join(f" without {each.value}" for each in Mechanism if each in self.without)

    def tokens_per_s(self, curve: Curve, usual_tokens: float) -> float:
        """The queries a second of one pod in batches as large as the policy makes them, up to the saturation point."""
        queries = {Kind.REQUEST_COUNT: self.size, Kind.SEQUENTIAL: 1}.get(self.kind, inf)
        tokens = min(float(curve.saturation_point), queries * usual_tokens)
        return tokens / curve.time_s(int(tokens))

    def aggregator(self, number: int, scenario: Scenario, engine: Engine) -> Aggregator:
        """One aggregator that follows it."""
        if self.kind in {Kind.OURS, Kind.SLA_PAPER}:
            kind = SlaBudgetController if self.kind is Kind.OURS else PaperBudgetController
            slo = SloTracker(SlaGoal(answer_s=scenario.slo_s), kind) if self.sla and not self.tokens else None
            return CoreAggregator(
                number,
                engine,
                token_budget=self.tokens or None,
                slo=slo,
                max_held_tokens=scenario.max_held_tokens,
                overhead_s=scenario.intake_s + scenario.complete_s,
                replicas=ActiveReplicas,
                coalesce=scenario.texts > 0,
                without=self.without,
            )
        return PlainAggregator(number, engine, self._closing(engine), scenario.max_held_tokens)

    def _closing(self, engine: Engine) -> Closing:
        queries, tokens = engine.step_queries, engine.step_tokens
        match self.kind:
            case Kind.STATIC_TOKENS:
                closing = Closing(queries, self.tokens or engine.curve.saturation_point)
            case Kind.REQUEST_COUNT:
                closing = Closing(self.size, tokens, self.wait_s)
            case Kind.TIME_WINDOW:
                closing = Closing(queries, tokens, self.wait_s, window=True)
            case _:
                closing = Closing(1, tokens)
        return replace(closing, depth=self.depth, margin_s=self.margin_s)
