"""Virtual time: what is to happen in order, and how long a step takes by a curve."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from importlib import resources
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.scheduler.curve import Curve, Rule

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

    __slots__ = ("_delays", "_factors", "_rng", "_sigma")

    def __init__(self, rng: np.random.Generator, sigma: float) -> None:
        """`sigma`: standard deviation of a step's time, as a share (lognormal, of median 1)."""
        self._rng = rng
        self._sigma = sigma
        self._factors: list[float] = []
        self._delays: list[float] = []

    def factor(self) -> float:
        """The factor for the time of a step."""
        if not self._factors:
            self._factors = np.exp(self._sigma * self._rng.standard_normal(_BLOCK)).tolist()
        return self._factors.pop()

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
H200_EAGER = Curve(0.002, 0.00033, 0.309e-6, 5405, Rule.HINGE, 8192)
"""MiniLM on an H200, as measured: the host launches a step's kernels in 2 ms, and the GPU computes meanwhile."""
_CAPTURED = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
H200_GRAPHS = Curve(0.0, 0.00033, 0.309e-6, 4096, Rule.THROUGHPUT, 8192, capture_sizes=_CAPTURED, eager_s=0.002)
"""The same with CUDA graphs up to 4,096 tokens, estimated: a step takes what the GPU computed in the steps above."""
BATCHER = Curve(0.005, 0.002, 0.003, 32, Rule.THROUGHPUT, 64)
"""MiniTriton's model, where a request counts as one token: 5 ms for the first and 3 ms for each further one."""
BUNDLED = {"minilm-cpu": "minilm_cpu_profile.json"}
"""Profiles that were measured by `python -m modelserver profile`."""
_MADE = {
    "a100-like": A100_LIKE,
    "a100-graphs": A100_GRAPHS,
    "h200-eager": H200_EAGER,
    "h200-graphs": H200_GRAPHS,
    "batcher": BATCHER,
}


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
