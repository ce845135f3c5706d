"""The experiments of the ORTHRUS paper (seed 004): Mistral 7B on four A100 of 40 GB, with the paper's requests.

A step reads the weights (14.5 GB) at the card's 1,555 GB/s, and of each sequence the keys and values of some 384 tokens
(50 MB). The time of a prompt token follows from one printed figure: 21.9 embeddings a second on one card. The paper
does not print what a step may hold: here it is vLLM's default, without a target for the time between tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadtest.lab.mixed.policies import Proportional
from loadtest.lab.mixed.run import ClosedLoop, Fleet, Record, all_of, split
from loadtest.lab.mixed.server import Apart, Engine, Request, Task
from modelserver.scheduler.step_limits import StepCost

WEIGHT = 1.7
"""Of a generation in embeddings: the paper's normalized throughput."""
SHARES = tuple(tenths / 10 for tenths in range(11))
"""Of the requests that generate."""
MIXED = Fleet("mixed, floor", both=4)
SPLIT_1_3 = split(1, 3)
FLEETS = (
    MIXED,
    Fleet("mixed, x : y = w_e : w_g", both=4, policy=Proportional),
    Fleet("alternating", both=4, policy=Apart.ALTERNATING),
    SPLIT_1_3,
    split(2, 2),
    split(3, 1),
)
SATURATED = {Task.EMBED: 21.9, Task.GENERATE: 12.9}
"""Requests a second of one card, printed."""
PHASES = (0.9, 0.5, 0.1)
_EVEN = 0.5
_PROMPT_TOKENS, _NEW_TOKENS = 128, 512
_STEP_TOKENS, _SEQUENCES = 2048, 256
_FIXED_S, _PER_SEQUENCE_S = 14.5e9 / 1555e9, 50e6 / 1555e9
_AT_ONCE = 1000
_LOOP = ClosedLoop(512, 180.0, 180.0)
_SATURATING = ClosedLoop(256, 180.0, 180.0)


@dataclass(frozen=True, slots=True)
class Printed:
    """A row of Table 1 (Mistral 7B): requests a second, embeddings and generations, of split 1:3 and of ORTHRUS."""

    share: float
    split: tuple[float, float]
    mixed: tuple[float, float]

    @property
    def embedding_card_per_s(self) -> float:
        """Embeddings a second of split's card for them, where it is never idle: its queue grows at these shares."""
        return self.split[0] if self.share <= _EVEN else SATURATED[Task.EMBED]


TABLE_1 = (
    Printed(0.1, (15.64, 1.49), (58.80, 7.00)),
    Printed(0.5, (12.54, 11.97), (25.32, 26.24)),
    Printed(0.9, (5.10, 29.56), (4.20, 39.10)),
)


def normalized(embeddings: float, generations: float) -> float:
    """Embeddings and weighted generations together."""
    return embeddings + WEIGHT * generations


def engine(embeddings_per_s: float = SATURATED[Task.EMBED]) -> Engine:
    """A card by the embeddings a second that it computes when it computes nothing else."""
    full_step_s = _STEP_TOKENS / _PROMPT_TOKENS / embeddings_per_s
    cost = StepCost(_FIXED_S, _PER_SEQUENCE_S, (full_step_s - _FIXED_S) / _STEP_TOKENS)
    return Engine(cost, _STEP_TOKENS, _SEQUENCES)


def steady(fleet: Fleet, share: float, seed: int = 1, embeddings_per_s: float = SATURATED[Task.EMBED]) -> Record:
    """512 clients, of whose requests a share generates; 180 s after a warm-up of 180 s.

    `embeddings_per_s`: of a card that only embeds.
    """
    return _LOOP.run(fleet, engine(), _drawn(share, seed), engine(embeddings_per_s))


def throughput(fleet: Fleet, share: float, seed: int = 1, embeddings_per_s: float = SATURATED[Task.EMBED]) -> float:
    """Normalized requests a second of the same."""
    found = steady(fleet, share, seed, embeddings_per_s)
    return normalized(found.per_s(Task.EMBED), found.per_s(Task.GENERATE))


def saturated(task: Task) -> float:
    """Requests a second of one card with 256 clients, all of one task."""
    requests = _drawn(float(task is Task.GENERATE), 1)
    return _SATURATING.run(Fleet("one", both=1), engine(), requests).per_s(task)


def at_once(fleet: Fleet) -> Record:
    """1,000 generations, and after them 1,000 embeddings, all at the same moment."""
    return all_of(fleet, engine(), [_request(task) for task in (Task.GENERATE, Task.EMBED) for _ in range(_AT_ONCE)])


def phase(fleet: Fleet, share: float, seed: int = 1, embeddings_per_s: float = SATURATED[Task.EMBED]) -> Record:
    """1,000 requests at once, in random order, of which a share generates."""
    generates = np.random.default_rng(seed).permutation(_AT_ONCE) < round(share * _AT_ONCE)
    requests = [_request(Task.GENERATE if each else Task.EMBED) for each in generates]
    return all_of(fleet, engine(), requests, engine(embeddings_per_s))


def phase_s(fleet: Fleet, share: float, seed: int = 1) -> float:
    """Seconds until all of a phase are done."""
    return phase(fleet, share, seed).seconds


def _drawn(share: float, seed: int) -> Iterator[Request]:
    """The same requests for every fleet."""
    rng = np.random.default_rng(seed)
    while True:
        yield _request(Task.GENERATE if rng.random() < share else Task.EMBED)


def _request(task: Task) -> Request:
    return Request(task, _PROMPT_TOKENS, _NEW_TOKENS if task is Task.GENERATE else 0)
