"""Measured on the engine: Daniel et al.'s throughput and latency, Pang et al.'s Tables I and II; all made smaller.

SmolLM2 on one thread of a CPU takes 5 ms for each token of a prompt and of a text: lengths are an eighth of the
sources', prompts of Daniel et al. a 64th, requests a twentieth to a fiftieth, and the cache is as small.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from loadtest.lab.generation.live.drive import Engine, Fixed, Measured, Rule, Static, drive
from loadtest.lab.generation.live.rules import ByMemory, ByPaper, BySla, Least
from loadtest.lab.generation.work import Work, around, at_once, exponential, poisson
from modelserver.scheduler.step_limits import MemoryForm, StepCost

LONGEST, STEP_TOKENS = 512, 512
SLOTS = 16
_MOST = (2, 4, 16, 48, 128)
"""The longest outputs of the five data sets, exponential with a mean of 16 before the cut."""
_MEAN, _PROMPT, _REQUESTS = 16.0, 8, 48
_RATES = (1.0, 4.0, 12.0)
"""Requests a second: those of Daniel et al., and one that no way bears."""
_ARRIVING = 40
_REPEATS = 2

Row = dict[str, Any]
Experiment = Callable[[Engine, StepCost], list[Row]]

CACHE_BLOCKS = 32
"""Of 32 tokens, in Tables I and II: half as many sequences again as the fixed batch, of the first row's length."""
BLOCKS: Mapping[str, int] = {"table1": CACHE_BLOCKS, "table2": CACHE_BLOCKS}
_CACHE_TOKENS = CACHE_BLOCKS * 32
_FIXED = 12
_TABLE_1 = (("LLaMA-65B", 8.5, 43.0, 0.5), ("LLaMA3-70B", 24.0, 48.0, 0.5), ("PanGu", 16.0, 16.0, 0.0))
"""Model of the paper, prompt and output there divided by eight, spread of the lengths."""
_AT_ONCE = 40
_TABLE_2 = (("LLaMA3-70B", 32.0, 8.0), ("LLaMA3-70B", 32.0, 56.0))
"""The same of Table II."""
_TARGET_SEQUENCES = 16
"""This many decode, beside as many prompt tokens, in a step that takes as long as a step may."""
_SLA_REQUESTS = 24
_KNOWN = 100
"""Lengths that a memory limit has seen before: what is measured is its steady state, not how it learns."""


def lengths(engine: Engine, cost: StepCost) -> list[Row]:
    """Tokens a second by how far outputs vary, all at once: padded, static, continuous."""
    del cost
    rows: list[Row] = []
    ways = {"static, padded": Static(SLOTS, padded=True), "static": Static(SLOTS), "continuous": None}
    for most in _MOST:
        rng = np.random.default_rng([1, most])
        work = at_once(np.full(_REQUESTS, _PROMPT), exponential(_MEAN, most, _REQUESTS, rng))
        found = _by_turns({name: partial(_fixed, engine, work, static) for name, static in ways.items()}, _REPEATS)
        rows += [_row(name, each, most=most, sd=float(np.std(work.outputs))) for name, each in found.items()]
    return rows


def latency(engine: Engine, cost: StepCost) -> list[Row]:
    """Seconds a request at given rates: a static batch takes what waits when the one before it is done."""
    del cost
    rows: list[Row] = []
    ways = {"static, padded": Static(SLOTS, padded=True), "static": Static(SLOTS), "continuous": None}
    for rate in _RATES:
        rng = np.random.default_rng([2, int(10 * rate)])
        prompts = rng.integers(1, 2 * _PROMPT + 1, _ARRIVING)
        work = poisson(rate, prompts, exponential(_MEAN, max(_MOST), _ARRIVING, rng), rng)
        found = _by_turns({name: partial(_fixed, engine, work, static) for name, static in ways.items()})
        rows += [_row(name, each, rate=rate) for name, each in found.items()]
    return rows


def table_1(engine: Engine, cost: StepCost) -> list[Row]:
    """Tokens a second, all at once: a fixed batch, vLLM's own admission, and the memory limit in both forms."""
    del cost
    rows: list[Row] = []
    for model, prompt, output, spread in _TABLE_1:
        work = _lengths(prompt, output, spread, _AT_ONCE, 1)
        rules: Mapping[str, Callable[[], Rule]] = {
            "fixed": partial(Fixed, _FIXED, STEP_TOKENS),
            "off": partial(Fixed, _AT_ONCE, STEP_TOKENS),
            "length": partial(_by_memory, MemoryForm.LENGTH, work),
            "occupancy": partial(_by_memory, MemoryForm.OCCUPANCY, work),
        }
        found = _by_rules(engine, work, rules)
        rows += [_row(name, each, model=model, prompt=prompt, output=output) for name, each in found.items()]
    return rows


def table_2(engine: Engine, cost: StepCost) -> list[Row]:
    """Requests a second while more wait than can run, and how long their steps take beside the target."""
    rows: list[Row] = []
    batch = _TARGET_SEQUENCES
    target_s = cost.fixed_s + batch * (cost.per_sequence_s + cost.per_token_s)
    for model, prompt, output in _TABLE_2:
        work = _lengths(prompt, output, 0.5, _SLA_REQUESTS, 2)
        sla = partial(BySla, cost, target_s, STEP_TOKENS, _AT_ONCE)
        memory = partial(_by_memory, MemoryForm.OCCUPANCY, work)
        rules: Mapping[str, Callable[[], Rule]] = {
            "fixed": partial(Fixed, batch // 2, STEP_TOKENS),
            "memory": memory,
            "sla": sla,
            "sla, as in the paper": partial(ByPaper, target_s, STEP_TOKENS, _AT_ONCE),
            "both": partial(_both, sla, memory),
        }
        found = _by_rules(engine, work, rules)
        rows += [
            _row(name, each, model=model, prompt=prompt, output=output, target_s=target_s, requests=_SLA_REQUESTS)
            for name, each in found.items()
        ]
    return rows


def _by_rules(engine: Engine, work: Work, rules: Mapping[str, Callable[[], Rule]]) -> dict[str, Measured]:
    return _by_turns({name: partial(_under, engine, work, rule) for name, rule in rules.items()})


def _under(engine: Engine, work: Work, rule: Callable[[], Rule], seed: int) -> Measured:
    return drive(engine, work, rule(), seed=seed)


def _fixed(engine: Engine, work: Work, static: Static | None, seed: int) -> Measured:
    return drive(engine, work, Fixed(SLOTS, STEP_TOKENS), seed=seed, static=static)


def _both(one: Callable[[], Rule], other: Callable[[], Rule]) -> Rule:
    return Least([one(), other()])


def _lengths(prompt: float, output: float, spread: float, count: int, seed: int) -> Work:
    rng = np.random.default_rng(seed)
    prompts = around(prompt, spread, count, rng, LONGEST // 4)
    return at_once(prompts, around(output, spread, count, rng, LONGEST // 2))


def _by_memory(form: MemoryForm, work: Work) -> Rule:
    rule = ByMemory(form, _CACHE_TOKENS, LONGEST, STEP_TOKENS)
    for place in range(_KNOWN):
        rule.finished(work.prompts[place % len(work)], work.outputs[place % len(work)])
    return rule


def _by_turns(ways: Mapping[str, Callable[[int], Measured]], repeats: int = 1) -> dict[str, Measured]:
    """Each way in turn, every other time backwards; the quicker run of each."""
    found: dict[str, Measured] = {}
    for repeat in range(repeats):
        order = list(ways.items())
        for name, way in order if repeat % 2 == 0 else reversed(order):
            one = way(repeat)
            if name not in found or one.seconds < found[name].seconds:
                found[name] = one
    return {name: found[name] for name in ways}


def _row(way: str, found: Measured, **what: Any) -> Row:
    row: Row = {
        "way": way,
        **what,
        "tokens_per_s": found.tokens_per_s,
        "running": found.running,
        "recomputed": found.recomputed,
        "between_p50_s": found.between_s[0],
        "between_p99_s": found.between_s[1],
        "p50_s": found.latency_s[0],
        "p90_s": found.latency_s[1],
        "wait_s": found.wait_s,
        "seconds": found.seconds,
    }
    _say(row)
    return row


def _say(row: Row) -> None:
    shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
    print(shown, file=sys.stderr, flush=True)


EXPERIMENTS: Mapping[str, Experiment] = {
    "lengths": lengths,
    "latency": latency,
    "table1": table_1,
    "table2": table_2,
}
