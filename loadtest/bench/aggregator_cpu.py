"""P4: the aggregator's CPU time per query, Kafka in to Kafka out, over that of a bare loop of the same libraries."""

from __future__ import annotations

import asyncio
import statistics

from loadtest.bench.backlog import REQUESTS, Progress, cpu_us_per_query, watch
from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan, Program, Setting, backlog
from loadtest.screen import ERRORS
from loadtest.stack.part import Part

NAME = "P4"
_TIMEOUT_S = 300.0


def measure(plan: Plan) -> list[Figure]:
    """Both in turns, each a fresh process that works off the same backlog of unique queries."""
    bare: list[float] = []
    ours: list[float] = []
    with backlog(plan) as setting, setting.instant_modelserver() as server:
        for turn in range(plan.repeats):
            bare.append(_bare_loop(setting, server))
            ours.append(_aggregator(setting, server))
            ERRORS.print(f"P4 {turn + 1} of {plan.repeats}: bare {bare[-1]:.1f} µs, aggregator {ours[-1]:.1f} µs")
    ratio = statistics.median(own / other for own, other in zip(ours, bare, strict=True))
    notes = f"{plan.queries} unique queries, {plan.token_budget} tokens a batch at most, all threads"
    return [
        Figure(NAME, "bare_loop_cpu", statistics.median(bare), "us/query", plan.repeats, notes),
        Figure(NAME, "aggregator_cpu", statistics.median(ours), "us/query", plan.repeats, notes),
        Figure(NAME, "aggregator_over_bare_loop", ratio, "ratio", plan.repeats, notes, "≤ 1.5"),
    ]


def _bare_loop(setting: Setting, server: str) -> float:
    replies = setting.replies_topic()
    addresses = ["--bootstrap", setting.bootstrap, "--modelserver", server]
    topics = ["--requests", REQUESTS, "--replies", replies, "--group", replies]
    budget = ["--token-budget", str(setting.plan.token_budget)]
    log = setting.plan.folder / "bare_loop.log"
    return cpu_us(setting, Program("loadtest.bench.bare_loop", [*addresses, *topics, *budget], log), replies)


def _aggregator(setting: Setting, server: str) -> float:
    replies = setting.replies_topic()
    return cpu_us(setting, setting.aggregator(server, replies), replies)


def cpu_us(setting: Setting, part: Part, replies: str) -> float:
    """Its CPU time per query, in µs, while it works off the backlog."""
    looks: list[Progress] = []
    part.launch()
    try:
        asyncio.run(
            watch(
                setting.bootstrap,
                replies,
                part.pid,
                count=setting.plan.queries,
                timeout_s=_TIMEOUT_S,
                on_look=looks.append,
            )
        )
    except BaseException:
        part.child.raise_if_ended(part.advice)
        raise
    finally:
        part.stop()
    return cpu_us_per_query(looks, setting.plan.queries)
