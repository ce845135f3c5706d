"""Policies on the step cost of a 20 M model on one core, with requests as they are measured there (`bench mixed`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadtest.lab.mixed.policies import Proportional
from loadtest.lab.mixed.run import ClosedLoop, Fleet, Record, split
from loadtest.lab.mixed.server import Apart, Engine, Request, Task
from modelserver.scheduler.step_limits import StepCost

FLEETS = (
    Fleet("mixed, floor", both=2),
    Fleet("mixed, x : y = w_e : w_g", both=2, policy=Proportional),
    Fleet("alternating", both=2, policy=Apart.ALTERNATING),
    split(1, 1),
)
CLIENTS = (64, 512)
SHARES = (0.1, 0.5, 0.9)
_ENGINE = Engine(StepCost(9.75e-3, 0.36e-3, 0.17e-3), step_tokens=1024, sequences=64, target_s=0.06)


def steady(fleet: Fleet, clients: int, share: float, seed: int = 1) -> Record:
    """A closed loop of clients, of whose requests a share generates; a target of 60 ms between tokens."""
    return ClosedLoop(clients, 25.0, 175.0).run(fleet, _ENGINE, _drawn(share, seed))


def _drawn(share: float, seed: int) -> Iterator[Request]:
    """Questions of 4 to 200 tokens, 20 in the median; prompts of 32 to 128 with 8 to 56 new tokens."""
    rng = np.random.default_rng(seed)
    while True:
        if rng.random() < share:
            yield Request(Task.GENERATE, int(rng.integers(32, 129)), int(rng.integers(8, 57)))
        else:
            yield Request(Task.EMBED, int(np.clip(rng.lognormal(3.0, 0.6), 4, 200)))
