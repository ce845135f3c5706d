"""What a query, a batch and a step cost in processor time, besides the step itself: for the simulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.core.saturation import Curve
from loadtest.processor import cpu_s
from loadtest.prometheus import totals
from loadtest.simulate.desk import Work
from loadtest.stack.service import Aggregator, ModelServer
from loadtest.validate.live import Step


@dataclass(frozen=True, slots=True)
class Costs:
    """What the simulator is told of the running system besides the profile.

    `overhead_s`: what an answer takes besides waiting and its step; `work` is that part for which a core is needed.
    """

    work: Work
    overhead_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """Running totals: processor seconds of the front (callers and aggregator) and of the model server, its steps.

    `computed_s`: seconds that steps lasted. Differences of two readings tell of what lay between.
    """

    front_s: float
    server_s: float
    computed_s: float
    steps: float
    queries: float

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(
            self.front_s - earlier.front_s,
            self.server_s - earlier.server_s,
            self.computed_s - earlier.computed_s,
            self.steps - earlier.steps,
            self.queries - earlier.queries,
        )


def read(server: ModelServer, front: Aggregator) -> Reading:
    """The totals as they are now. Raises OSError."""
    found = totals(server.metrics_address)
    return Reading(
        time.process_time() + cpu_s(front.child.pid),
        cpu_s(server.child.pid),
        found["embed_engine_duration_seconds_sum"],
        found["embed_engine_duration_seconds_count"],
        found["embed_engine_queries_total"],
    )


def costs(overhead_s: float, alone: Reading, loaded: Reading) -> Costs:
    """From queries one by one and from batches of several.

    The engine of `loaded` runs on one core, so what the server used beyond its steps is its own. Raises ValueError
    when the loaded batches held no more than one query.
    """
    few, many = alone.queries / alone.steps, loaded.queries / loaded.steps
    if many <= few:
        raise ValueError(f"batches of {many:.1f} queries under load do not tell what a query costs")
    one_s, several_s = alone.front_s / alone.steps, loaded.front_s / loaded.steps
    query_s = max(0.0, (several_s - one_s) / (many - few))
    own_s = max(0.0, loaded.server_s - loaded.computed_s) / loaded.steps
    return Costs(Work(query_s, max(0.0, one_s - few * query_s), own_s), overhead_s)


def step_factors(steps: Sequence[Step], curve: Curve) -> tuple[float, ...]:
    """How long live steps took, in times of what the profile says; each is one batch's, as one aggregator sends them.

    It was measured with nothing else on the engine's core, where a server under load reads and answers batches too,
    and at another moment, when a machine that is shared may have been quicker or slower.
    """
    return tuple(step.duration_s / curve.time_s(step.tokens) for step in steps)
