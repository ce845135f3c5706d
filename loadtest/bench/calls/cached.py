"""The exact cache: 64 callers whose questions repeat by Zipf's law, beside no cache and vLLM's server, in turns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from loadtest.bench.callers import Load, Turn, callers
from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan, texts
from loadtest.bench.sides import Ours, Side, both_sides, ratio, usual
from loadtest.bench.turns import Medians, in_turns
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.service import without_kafka

NAME = "cache"
_TURN_S = 6.0
_LOAD = Load(64)
_QUESTIONS, _EXPONENT = 100_000, 1.0
_CACHE_BYTES = 64 * 1024 * 1024
"""For a third of the questions."""
_WARM_UP = 2048


def asked(count: int, seed: int) -> list[str]:
    """So many questions: the one of rank r comes with a share of 1/r."""
    shares = 1.0 / np.arange(1, _QUESTIONS + 1) ** _EXPONENT
    ranks = np.random.default_rng(seed).choice(_QUESTIONS, count, p=shares / shares.sum())
    questions = texts(_QUESTIONS)
    return [questions[rank] for rank in ranks.tolist()]


def measure(plan: Plan) -> list[Figure]:
    with both_sides(plan) as (ours, vllm), callers(plan.folder) as calling:
        told = {"BATCHING__CACHE_BYTES": str(_CACHE_BYTES)}
        log = plan.folder / "aggregator_cache.log"
        with without_kafka(log, model=MODEL, servers=[ours.server.address], settings=told) as front:
            sides: dict[str, Side] = {"cache": Ours(front, ours.server, ours.dtype), "off": ours, "vllm": vllm}

            def turn(side: Side, count: int, number: int) -> Turn:
                return side.turn(calling, replace(_LOAD, inputs=asked(count, number)), count)

            counts = {
                name: max(_LOAD.callers, round(plan.turn_share * _TURN_S * turn(side, _WARM_UP, 99).queries_per_s))
                for name, side in sides.items()
            }
            turns = {name: partial(turn, side, counts[name]) for name, side in sides.items()}
            found = in_turns(NAME, plan.repeats, turns, lambda each: each.said)
    notes = f"64 callers, Zipf {_EXPONENT:g} of {_QUESTIONS} questions, MiniLM {ours.dtype}, {_CACHE_BYTES} bytes"
    medians = Medians(NAME, plan.repeats, notes)
    over = [ratio(medians, found, f"over_{other}", ("cache", other)) for other in ("off", "vllm")]
    return [*usual(found, medians), *over]
