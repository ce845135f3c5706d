"""How long an engine step takes by its tokens: curves, and steps as they were elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from protos.modelserver.v1.curve import Curve, Rule

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
