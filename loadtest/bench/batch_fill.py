"""P6: how full batches are when the engine is the bottleneck."""

from __future__ import annotations

import asyncio

from loadtest.bench.backlog import Progress, between, watch
from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan, backlog
from loadtest.prometheus import BatchFigures, batch_figures

NAME = "P6"
_STEP_S = 0.05
_TIMEOUT_S = 300.0


def measure(plan: Plan) -> list[Figure]:
    """Mean fill of the batches cut while a backlog waits, before a model server that takes its time."""
    looks: list[Progress] = []
    figures: list[BatchFigures] = []
    queries = plan.queries // 2
    with (
        backlog(plan) as setting,
        setting.instant_modelserver(_STEP_S) as server,
        setting.aggregator(server, replies := setting.replies_topic()) as aggregator,
    ):

        def look(progress: Progress) -> None:
            looks.append(progress)
            figures.append(batch_figures(aggregator.metrics_address))

        asyncio.run(
            watch(setting.bootstrap, replies, aggregator.pid, count=queries, timeout_s=_TIMEOUT_S, on_look=look)
        )
    first, last = between(looks, queries)
    steady = figures[looks.index(last)] - figures[looks.index(first)]
    tokens_per_s = steady.tokens / (last.at_s - first.at_s)
    notes = f"{steady.batches:.0f} batches of {steady.tokens_per_batch:.0f} tokens, steps of {_STEP_S} s"
    return [
        Figure(NAME, "mean_batch_fill", steady.fill, "ratio", 1, notes, "≥ 0.95"),
        Figure(NAME, "engine_use", tokens_per_s * _STEP_S / plan.token_budget, "ratio", 1, notes),
    ]
