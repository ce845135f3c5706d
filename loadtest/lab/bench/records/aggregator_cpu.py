"""P4: the aggregator's CPU time per query, Kafka in to Kafka out, over that of a bare loop of the same libraries.

`encodings`: the same with each encoding of the answers, over that with float32.
"""

from __future__ import annotations

from functools import partial

from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.setting import REQUESTS, Plan, Setting, backlog, kafka
from loadtest.lab.bench.turns import Medians, in_turns
from loadtest.stack.part import Program
from protos.embedding.v1 import embedding_pb2 as pb

NAME, ENCODINGS = "P4", "encodings"
_PLAIN = "float32"
_ENCODINGS = {
    _PLAIN: pb.ENCODING_FLOAT32,
    "float16": pb.ENCODING_FLOAT16,
    "int8": pb.ENCODING_INT8,
    "binary": pb.ENCODING_BINARY,
}


def measure(plan: Plan) -> list[Figure]:
    """Both in turns, each a fresh process that works off the same backlog of unique queries."""
    with backlog(plan) as setting, setting.instant_modelservers() as servers:
        sides = {
            "bare_loop": partial(_bare_loop, setting, servers.addresses[0]),
            "aggregator": partial(_aggregator, setting, servers.addresses, REQUESTS),
        }
        found = in_turns(NAME, plan.repeats, sides, "{:.1f} µs".format)
    medians = Medians(NAME, plan.repeats, _notes(plan), {"aggregator_over_bare_loop": "≤ 1.25"})
    return [
        *(medians.of(f"{name}_cpu", "us/query", values) for name, values in found.items()),
        medians.ratio("aggregator_over_bare_loop", found["aggregator"], found["bare_loop"]),
    ]


def measure_encodings(plan: Plan) -> list[Figure]:
    """In turns, each from a topic of its own."""
    with kafka(plan) as setting, setting.instant_modelservers() as servers:
        for name, encoding in _ENCODINGS.items():
            setting.fill(plan.queries, name, encoding=encoding)
        sides = {name: partial(_aggregator, setting, servers.addresses, name) for name in _ENCODINGS}
        found = in_turns(ENCODINGS, plan.repeats, sides, "{:.1f} µs".format)
    others = [name for name in found if name != _PLAIN]
    medians = Medians(ENCODINGS, plan.repeats, _notes(plan), {f"{name}_over_{_PLAIN}": "≤ 1.03" for name in others})
    return [
        *(medians.of(f"{name}_cpu", "us/query", values) for name, values in found.items()),
        *(medians.ratio(f"{name}_over_{_PLAIN}", found[name], found[_PLAIN]) for name in others),
    ]


def _notes(plan: Plan) -> str:
    return f"{plan.queries} unique queries, {plan.token_budget} tokens a batch at most, all threads"


def _bare_loop(setting: Setting, server: str, _: int) -> float:
    replies = setting.replies_topic()
    where = ["--bootstrap", setting.bootstrap, "--modelserver", server, "--requests", REQUESTS, "--replies", replies]
    budget = ["--token-budget", str(setting.plan.token_budget)]
    program = Program("loadtest.lab.bench.programs.bare_loop", [*where, *budget], setting.plan.folder / "bare_loop.log")
    return setting.cpu_us(program, replies, setting.plan.queries)


def _aggregator(setting: Setting, servers: list[str], topic: str, _: int) -> float:
    replies = setting.replies_topic()
    return setting.cpu_us(setting.aggregator(servers, replies, topic=topic), replies, setting.plan.queries)
