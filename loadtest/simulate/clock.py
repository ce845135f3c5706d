"""Virtual time: what is to happen in order, and how long a step takes by a curve."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from importlib import resources
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from protos.modelserver.v1.curve import Curve, Rule

_BLOCK = 8192


class Clock:
    """Events by time; those of the same time happen in the order in which they were requested."""

    __slots__ = ("_events", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0

    def at(self, time_s: float, act: Callable[[Any], None], argument: Any = None) -> None:
        """Call `act(argument)` at a time."""
        self._order += 1
        heappush(self._events, (time_s, self._order, act, argument))

    def next_s(self) -> float:
        """When something happens next; `inf` for never."""
        return self._events[0][0] if self._events else inf

    def step(self) -> None:
        """Let the next thing happen."""
        self.now_s, _, act, argument = heappop(self._events)
        act(argument)


class Noise:
    """Random factors and delays, drawn in blocks because one at a time is slow."""

    __slots__ = ("_delays", "_factors", "_rng", "_sigma", "_step_times")

    def __init__(self, rng: np.random.Generator, sigma: float, step_times: StepTimes | None = None) -> None:
        """`sigma`: standard deviation of a step's time, as a share (lognormal, of median 1); none with `step_times`."""
        self._rng = rng
        self._sigma = sigma
        self._step_times = step_times
        self._factors: list[float] = []
        self._delays: list[float] = []

    def factor(self, tokens: int) -> float:
        """The factor for the time of a step of this many tokens."""
        known = self._step_times
        if not self._factors:
            drawn = np.exp(self._sigma * self._rng.standard_normal(_BLOCK)).tolist()
            self._factors = drawn if known is None else list(known.factors[::-1])
        factor = self._factors.pop()
        return factor if known is None else factor * known.usual_factor(tokens)

    def delay(self) -> float:
        """One way through the network, of mean 1: at least half of that, with an exponential tail."""
        if not self._delays:
            self._delays = (0.5 + self._rng.exponential(0.5, _BLOCK)).tolist()
        return self._delays.pop()

    def uniform(self) -> float:
        return float(self._rng.random())


A100_LIKE = Curve(0.020, 0.0, 0.020 / 600, 600, Rule.HINGE, 8192)
"""Flat, then linear, with the knee at 600 tokens, after Voyage AI's figure 2.

The source gives the knee and the shape; its text does not give the height of the floor, which is taken as 20 ms:
every time in the simulator scales with it.
"""
A100_GRAPHS = replace(A100_LIKE, capture_sizes=(64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096))
"""The same engine with CUDA graphs of the sizes that model servers capture; the knee lies between two of them."""
BATCHER = Curve(0.005, 0.002, 0.003, 32, Rule.THROUGHPUT, 64)
"""MiniTriton's model, where a request counts as one token: 5 ms for the first and 3 ms for each further one."""
BUNDLED = {"minilm-cpu": "minilm_cpu_profile.json"}
"""Profiles that were measured by `python -m modelserver profile`."""
_MADE = {"a100-like": A100_LIKE, "a100-graphs": A100_GRAPHS, "batcher": BATCHER}


def find(name: str | Curve) -> Curve:
    """The curve of that name, or of the profile file of that path, or the one given.

    Raises ValueError for a file that is no profile, OSError for one that cannot be read.
    """
    if isinstance(name, Curve):
        return name
    if name in _MADE:
        return _MADE[name]
    if name in BUNDLED:
        return parse(resources.files("loadtest").joinpath("data", BUNDLED[name]).read_bytes(), name)
    return parse(Path(name).read_bytes(), name)


def parse(content: bytes, name: str) -> Curve:
    """The curve of a profile as the model server writes it. Raises ValueError."""
    try:
        curve = json.loads(content)["curve"]
        return replace(Curve(**curve), rule=Rule(curve["rule"]), capture_sizes=tuple(curve.get("capture_sizes", ())))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a profile: {type(error).__name__}: {error}") from error


def slower(curve: Curve, factor: float) -> Curve:
    """The same curve on a server that takes `factor` times as long."""
    return replace(
        curve,
        floor_s=curve.floor_s * factor,
        fixed_s=curve.fixed_s * factor,
        per_token_s=curve.per_token_s * factor,
    )


_CLASSES, _LEAST = 8, 10
"""Of sizes, and the steps that a class needs: of fewer, all are one."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long steps took in times of what a curve says: those of about `tokens[i]` tokens usually `usual[i]`.

    `factors`: in the order of the steps, what each took of the usual for its size; they are taken over and over.
    """

    tokens: tuple[float, ...]
    usual: tuple[float, ...]
    factors: tuple[float, ...]

    def usual_factor(self, tokens: int) -> float:
        """For a step of this many tokens; between sizes along a line, beyond them as at the last."""
        return float(np.interp(tokens, self.tokens, self.usual))


def step_times(steps: Sequence[tuple[int, float]], curve: Curve) -> StepTimes:
    """From the tokens and seconds of steps in their order. Raises ValueError without any.

    They are put in eight classes of as many steps, by size; the usual factor of a class is its median.
    """
    if not steps:
        raise ValueError("no steps to take times from")
    tokens = np.array([size for size, _ in steps], np.float64)
    factors = np.array([duration_s / curve.time_s(size) for size, duration_s in steps])
    classes = np.array_split(np.argsort(tokens, kind="stable"), max(1, min(_CLASSES, len(steps) // _LEAST)))
    sizes = np.array([tokens[members].mean() for members in classes])
    usual = np.array([np.median(factors[members]) for members in classes])
    return StepTimes(
        tuple(sizes.tolist()), tuple(usual.tolist()), tuple((factors / np.interp(tokens, sizes, usual)).tolist())
    )
