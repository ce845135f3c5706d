"""Batches closed by tokens, count or time: an aggregator each before one engine, under the same load in turns."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import numpy as np

from loadtest.bench.callers import Load, Parts, Turn, callers
from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan, documents, mean_tokens, texts
from loadtest.bench.sides import described
from loadtest.bench.turns import Medians, in_turns
from loadtest.kit.prometheus import BatchFigures, batch_figures
from loadtest.screen import plain_table, wide
from loadtest.simulate.load import trace
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.service import Aggregator, ModelServer, without_kafka

NAME = "batching"
_PLAIN = "loadtest.bench.programs.plain_aggregator"
_WAITS_S = (0.005, 0.02)
_TRACE_S, _FULL_S, _MOST = 8.0, 4.0, 8000
_SHARE = 0.6
"""Of what batches by tokens reach at most: the mean rate of the trace's arrivals, which come in bursts."""
_FULL = Load(callers=8, per_call=64)
_TRIED = 2048
_EVERY = {"questions": 0, "mixed": 10}
"""The inputs of each load, of which every tenth may be a document instead."""
_WORDS = (60, 160)  # of a document, some 75 to 200 tokens: what MiniLM takes whole
_STEPS, _LEAST_S = 4.0, 0.1
"""The latency target, as in the simulator: this many times a full step, but at least this many seconds."""
_COLUMNS = ("throughput", "tokens", "p50", "p99", "late", "fill", "callers_thread")


@dataclass(frozen=True, slots=True)
class Batched:
    """A turn and its batches; `tokens`: of an input in the mean; `full`: of a full batch. Late: after `in_time_s`."""

    turn: Turn
    batches: BatchFigures
    tokens: float
    full: int
    in_time_s: float

    def figures(self) -> dict[tuple[str, str], float]:
        return {
            **self.turn.figures(),
            ("tokens", "token/s"): self.turn.queries_per_s * self.tokens,
            ("late", "share"): float(np.mean(self.turn.latency_s > self.in_time_s)),
            ("fill", "share"): self.batches.tokens_per_batch / self.full,
        }


def measure(plan: Plan) -> list[Figure]:
    """Each rule under each load: the trace's arrivals, and more calls than the engine can answer."""
    server = ModelServer(plan.folder / "modelserver.log", settings={"PROFILE__CACHE": str(plan.profiles)})
    with server, callers(plan.folder) as calling, ExitStack() as stack:
        facts = described(server)
        profile, point = facts.profile, facts.profile.saturation_point
        in_time_s = max(_LEAST_S, _STEPS * max(profile.floor_s, profile.fixed_s + profile.per_token_s * point))
        fronts: dict[str, Aggregator] = {}
        tokens = {name: mean_tokens(inputs_of(name, _TRIED)) for name in _EVERY}
        for name, module in rules(point, tokens.values()).items():
            log = plan.folder / f"aggregator_{name}.log"
            fronts[name] = stack.enter_context(without_kafka(log, model=MODEL, servers=[server.address], module=module))

        def turn(front: Aggregator, load: Load, mean: float, _: int = 0) -> Batched:
            before = batch_figures(front.metrics_address)
            parts: Parts = {"aggregator": [front], "model_server": [server]}
            found = calling.turn([front.address], load, len(load.inputs), parts)
            return Batched(found, batch_figures(front.metrics_address) - before, mean, point, in_time_s)

        found: dict[str, list[Batched]] = {}
        for name in _EVERY:
            trial = replace(_FULL, inputs=inputs_of(name, _TRIED))
            most = max(turn(fronts["tokens"], trial, tokens[name]).turn.queries_per_s for _ in range(2))
            for kind, load in loads(name, most, plan.turn_share).items():
                sides = {rule: partial(turn, front, load, tokens[name]) for rule, front in fronts.items()}
                turns = in_turns(f"{NAME} {name} {kind}", plan.repeats, sides, lambda each: each.turn.said)
                found |= {f"{name}_{kind}_{rule}": each for rule, each in turns.items()}
    notes = f"MiniLM {facts.dtype}, a full batch {point} tokens, in time within {1e3 * in_time_s:.0f} ms"
    return figures(found, Medians(NAME, plan.repeats, notes))


def rules(saturation_point: int, tokens: Iterable[float]) -> dict[str, str]:
    """The program of each rule: by tokens; by the count that fills a step with each load's inputs; by time alone."""
    found, counts = {"tokens": "aggregator"}, [ceil(saturation_point / each) for each in tokens]
    for wait_s in _WAITS_S:
        for queries in (*counts, 0):
            closed = f"count{queries}" if queries else "time"
            found[f"{closed}_{1e3 * wait_s:.0f}ms"] = f"{_PLAIN} {queries} {wait_s}"
    return found


def loads(name: str, most: float, share: float) -> dict[str, Load]:
    """The trace's first arrivals at a share of what the engine can answer, and as many calls as go."""
    count = min(_MOST, ceil(share * _TRACE_S * _SHARE * most))
    arrivals_s = trace()[: count + 1]
    due_s = arrivals_s[:-1] * count / (_SHARE * most) / arrivals_s[-1]
    lists = replace(_FULL, inputs=inputs_of(name, ceil(share * _FULL_S * most / _FULL.per_call) * _FULL.per_call))
    return {"trace": Load(due_s=due_s.tolist(), inputs=inputs_of(name, count)), "full": lists}


def inputs_of(name: str, count: int) -> list[str]:
    inputs = texts(count)
    if every := _EVERY[name]:
        inputs[::every] = documents(len(inputs[::every]), _WORDS)
    return inputs


def figures(found: dict[str, list[Batched]], medians: Medians) -> list[Figure]:
    """Medians of each load and rule; and a table of them."""
    shown = plain_table("load and rule", *_COLUMNS)
    made: list[Figure] = []
    for name, turns in found.items():
        values = [each.figures() for each in turns]
        mark = next((each.turn.mark for each in turns if each.turn.marked), "")
        own = {
            figure: medians.of(f"{name}_{figure}", unit, (each[figure, unit] for each in values), medians.notes + mark)
            for figure, unit in values[0]
        }
        shown.add_row(f"{name}{' !' if mark else ''}", *(f"{own[column].value:.4g}" for column in _COLUMNS))
        made += own.values()
    wide(140).print(shown)
    return made
