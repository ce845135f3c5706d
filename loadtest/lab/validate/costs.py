"""What a call, a query, a batch and a step cost in processor time, besides the step itself: for the simulator."""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass

from loadtest.clients.prometheus import totals
from loadtest.lab.processor import cpu_s
from loadtest.simulate.scenario import Work
from loadtest.stack.service import Aggregator, ModelServer


@dataclass(frozen=True, slots=True)
class Costs:
    """What the simulator knows of the running system besides the profile.

    `delay_s`: what an answer takes besides waiting, its step and the `work` for which a core is needed.
    """

    work: Work
    delay_s: float

    def of(self, run: Reading) -> Work:
        """What a run's queries and batches cost: as much more than `work` as it used more, for a core was less busy."""
        told_s = run.queries * self.work.query_s + run.steps * self.work.batch_s
        share = run.front_s / told_s
        query_s, batch_s = share * self.work.query_s, share * self.work.batch_s
        return Work(run.callers_s / run.queries, query_s, batch_s, run.server_own_s)


@dataclass(frozen=True, slots=True)
class Reading:
    """Running totals: processor seconds of callers, the aggregator (`front_s`) and the model server, and its steps.

    `computed_s`: seconds that steps lasted. Differences of two readings tell of what lay between.
    """

    callers_s: float
    front_s: float
    server_s: float
    computed_s: float
    steps: float
    queries: float

    @property
    def server_own_s(self) -> float:
        """Of the model server, a step, beside what the step itself lasts; its engine runs on one core."""
        return max(0.0, self.server_s - self.computed_s) / self.steps

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))


def read(server: ModelServer, front: Aggregator) -> Reading:
    """The totals as they are now; the callers are this process. Raises OSError."""
    found = totals(server.metrics_address)
    return Reading(
        time.process_time(),
        cpu_s(front.child.pid),
        cpu_s(server.child.pid),
        found["embed_engine_duration_seconds_sum"],
        found["embed_engine_duration_seconds_count"],
        found["embed_engine_queries_total"],
    )


def costs(overhead_s: float, alone: Reading, loaded: Reading) -> Costs:
    """From queries one by one, which take `overhead_s` each besides their steps, and from batches of several.

    Raises ValueError when the loaded batches held at most one query.
    """
    few, many = alone.queries / alone.steps, loaded.queries / loaded.steps
    if many <= few:
        raise ValueError(f"batches of {many:.1f} queries under load do not tell what a query costs")
    one_s, several_s = alone.front_s / alone.steps, loaded.front_s / loaded.steps
    query_s = max(0.0, (several_s - one_s) / (many - few))
    work = Work(loaded.callers_s / loaded.queries, query_s, max(0.0, one_s - few * query_s), loaded.server_own_s)
    busy_s = (alone.callers_s + alone.front_s) / alone.queries + work.step_s
    return Costs(work, max(0.0, overhead_s - busy_s))
