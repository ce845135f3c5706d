"""Measure the cost of a generating engine's step: of the step itself, each decoding sequence, each prompt token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from modelserver.wings.generation.generator import Generator, StepLoad
from modelserver.wings.generation.step_limits import StepCost
from protos.modelserver.v1 import modelserver_pb2 as pb

_SEQUENCES = (1, 4, 16, 32)
_PROMPTS = (32, 128, 512, 1024)
_STEPS = 5  # of each load; an odd number, whose median is one of them
_PROMPT_TOKENS = 16  # a short prompt: steps are to decode
_LEAST_S = 1e-7  # a cost of zero would divide by zero


def measure(engine: Generator, clock: Callable[[], float] = time.perf_counter) -> StepCost:
    """Run steps of known loads, and fit their times by least squares of the relative error."""
    facts = engine.facts
    rng = np.random.default_rng(0)
    measured: list[tuple[StepLoad, float]] = []

    def prompt(tokens: int) -> list[int]:
        return [int(token) for token in rng.integers(0, facts.vocabulary_size, tokens)]

    def step() -> tuple[StepLoad, float]:
        start_s = clock()
        _, load = engine.step()
        return load, clock() - start_s

    engine.limit(facts.step_token_capacity, facts.max_sequences)
    for sequences in _SEQUENCES:
        if sequences > facts.max_sequences:
            break
        names = [f"decode-{sequences}-{number}" for number in range(sequences)]
        for name in names:
            engine.add(name, prompt(_PROMPT_TOKENS), pb.Sampling(max_tokens=_STEPS + 8, temperature=0, ignore_eos=True))
        while engine.load.prefill_tokens:
            step()
        step()
        times = [step() for _ in range(_STEPS)]
        measured.append((times[0][0], statistics.median(took_s for _, took_s in times)))
        engine.abort(names)
        step()
    longest = min(facts.step_token_capacity, facts.context_tokens - 2, facts.kv_tokens - 1)
    for tokens in sorted({min(tokens, longest) for tokens in _PROMPTS}):
        times = []
        for repeat in range(3):
            name = f"prompt-{tokens}-{repeat}"
            engine.add(name, prompt(tokens), pb.Sampling(max_tokens=2, temperature=0, ignore_eos=True))
            times.append(step())
            engine.abort([name])
            step()
        measured.append((StepLoad(tokens, 0), statistics.median(took_s for _, took_s in times)))
    return fitted(measured)


def fitted(measured: list[tuple[StepLoad, float]]) -> StepCost:
    """The cost that fits these loads and times (seconds) best; no part of it below 0."""
    loads = np.array([(1.0, load.decoding, load.prefill_tokens) for load, _ in measured])
    times = np.array([took_s for _, took_s in measured])
    cost, *_ = np.linalg.lstsq(loads / times[:, None], np.ones(len(times)), rcond=None)
    return StepCost(*(max(_LEAST_S, float(part)) for part in cost))
