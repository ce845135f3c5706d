"""P4: the aggregator's CPU time per query, Kafka in to Kafka out, over that of a bare loop of the same libraries.

`encodings`: the same with each encoding of the answers, over that with float32.
"""

from __future__ import annotations

import statistics

from loadtest.bench.figures import Figure
from loadtest.bench.setting import REQUESTS, Plan, Program, Setting, backlog, kafka
from loadtest.screen import ERRORS
from protos.embedding.v1 import embedding_pb2 as pb

NAME, ENCODINGS = "P4", "encodings"
_OTHERS = {"float16": pb.ENCODING_FLOAT16, "int8": pb.ENCODING_INT8, "binary": pb.ENCODING_BINARY}


def measure(plan: Plan) -> list[Figure]:
    """Both in turns, each a fresh process that works off the same backlog of unique queries."""
    bare: list[float] = []
    ours: list[float] = []
    with backlog(plan) as setting, setting.instant_modelservers() as servers:
        for turn in range(plan.repeats):
            bare.append(_bare_loop(setting, servers.addresses[0]))
            ours.append(_aggregator(setting, servers.addresses, REQUESTS))
            ERRORS.print(f"P4 {turn + 1} of {plan.repeats}: bare {bare[-1]:.1f} µs, aggregator {ours[-1]:.1f} µs")
    ratio = statistics.median(own / other for own, other in zip(ours, bare, strict=True))
    notes = f"{plan.queries} unique queries, {plan.token_budget} tokens a batch at most, all threads"
    return [
        Figure(NAME, "bare_loop_cpu", statistics.median(bare), "us/query", plan.repeats, notes),
        Figure(NAME, "aggregator_cpu", statistics.median(ours), "us/query", plan.repeats, notes),
        Figure(NAME, "aggregator_over_bare_loop", ratio, "ratio", plan.repeats, notes, "≤ 1.25"),
    ]


def measure_encodings(plan: Plan) -> list[Figure]:
    """In turns, each from a topic of its own."""
    found: dict[str, list[float]] = {"float32": [], **{name: [] for name in _OTHERS}}
    with kafka(plan) as setting, setting.instant_modelservers() as servers:
        for name in found:
            setting.fill(plan.queries, name, encoding=_OTHERS.get(name, pb.ENCODING_FLOAT32))
        for turn in range(plan.repeats):
            for name, values in found.items():
                values.append(_aggregator(setting, servers.addresses, name))
            said = ", ".join(f"{name} {values[-1]:.1f} µs" for name, values in found.items())
            ERRORS.print(f"{ENCODINGS} {turn + 1} of {plan.repeats}: {said}")
    notes = f"{plan.queries} unique queries, {plan.token_budget} tokens a batch at most, all threads"
    figures = [
        Figure(ENCODINGS, f"{name}_cpu", statistics.median(values), "us/query", plan.repeats, notes)
        for name, values in found.items()
    ]
    for name in _OTHERS:
        ratio = statistics.median(one / other for one, other in zip(found[name], found["float32"], strict=True))
        figures.append(Figure(ENCODINGS, f"{name}_over_float32", ratio, "ratio", plan.repeats, notes, "≤ 1.03"))
    return figures


def _bare_loop(setting: Setting, server: str) -> float:
    replies = setting.replies_topic()
    addresses = ["--bootstrap", setting.bootstrap, "--modelserver", server]
    topics = ["--requests", REQUESTS, "--replies", replies, "--group", replies]
    budget = ["--token-budget", str(setting.plan.token_budget)]
    log = setting.plan.folder / "bare_loop.log"
    program = Program("loadtest.bench.programs.bare_loop", [*addresses, *topics, *budget], log)
    return setting.cpu_us(program, replies, setting.plan.queries)


def _aggregator(setting: Setting, servers: list[str], topic: str) -> float:
    replies = setting.replies_topic()
    return setting.cpu_us(setting.aggregator(servers, replies, topic=topic), replies, setting.plan.queries)
