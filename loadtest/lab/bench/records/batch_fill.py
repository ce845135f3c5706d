"""P6: how full batches are when the engine is the bottleneck."""

from __future__ import annotations

from loadtest.clients.prometheus import BatchFigures, batch_figures
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.setting import Plan, Progress, backlog, between

NAME = "P6"
_STEP_S = 0.05


def measure(plan: Plan) -> list[Figure]:
    """Mean fill of the batches cut while a backlog waits, before a model server that takes its time."""
    figures: list[BatchFigures] = []
    queries = plan.queries // 2
    with (
        backlog(plan) as setting,
        setting.instant_modelservers(step_s=_STEP_S) as servers,
        setting.aggregator(servers.addresses, replies := setting.replies_topic()) as aggregator,
    ):

        def look(_: Progress) -> None:
            figures.append(batch_figures(aggregator.metrics_address))

        looks = setting.wait(aggregator, replies, queries, look)
    first, last = between(looks, queries)
    steady = figures[looks.index(last)] - figures[looks.index(first)]
    tokens_per_s = steady.tokens / (last.at_s - first.at_s)
    notes = f"{steady.batches:.0f} batches of {steady.tokens_per_batch:.0f} tokens, steps of {_STEP_S} s"
    return [
        Figure(NAME, "mean_batch_fill", steady.fill, "ratio", 1, notes, "≥ 0.95"),
        Figure(NAME, "engine_use", tokens_per_s * _STEP_S / plan.token_budget, "ratio", 1, notes),
    ]
