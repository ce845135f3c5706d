"""P4: the aggregator's CPU time per query, Kafka in to Kafka out, over that of a bare loop of the same libraries."""

from __future__ import annotations

from functools import partial

from loadtest.bench.figures import Figure
from loadtest.bench.setting import REQUESTS, Plan, Setting, backlog
from loadtest.bench.turns import Medians, in_turns
from loadtest.stack.part import Program

NAME = "P4"


def measure(plan: Plan) -> list[Figure]:
    """Both in turns, each a fresh process that works off the same backlog of unique queries."""
    with backlog(plan) as setting, setting.instant_modelservers() as servers:
        sides = {
            "bare_loop": partial(_bare_loop, setting, servers.addresses[0]),
            "aggregator": partial(_aggregator, setting, servers.addresses),
        }
        found = in_turns(NAME, plan.repeats, sides, "{:.1f} µs".format)
    medians = Medians(NAME, plan.repeats, _notes(plan), {"aggregator_over_bare_loop": "≤ 1.25"})
    return [
        *(medians.of(f"{name}_cpu", "us/query", values) for name, values in found.items()),
        medians.ratio("aggregator_over_bare_loop", found["aggregator"], found["bare_loop"]),
    ]


def _notes(plan: Plan) -> str:
    return f"{plan.queries} unique queries, {plan.token_budget} tokens a batch at most, all threads"


def _bare_loop(setting: Setting, server: str, _: int) -> float:
    replies = setting.replies_topic()
    where = ["--bootstrap", setting.bootstrap, "--modelserver", server, "--requests", REQUESTS, "--replies", replies]
    budget = ["--token-budget", str(setting.plan.token_budget)]
    program = Program("loadtest.bench.programs.bare_loop", [*where, *budget], setting.plan.folder / "bare_loop.log")
    return setting.cpu_us(program, replies, setting.plan.queries)


def _aggregator(setting: Setting, servers: list[str], _: int) -> float:
    replies = setting.replies_topic()
    return setting.cpu_us(setting.aggregator(servers, replies), replies, setting.plan.queries)
