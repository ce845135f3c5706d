"""Latency curves: how long an engine step takes by its tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

from protos.modelserver.v1.curve import Curve, Rule

A100_LIKE = Curve(0.020, 0.0, 0.020 / 600, 600, Rule.HINGE, 8192)
"""Flat, then linear, with the knee at 600 tokens, after seed 000's figure 2.

The source gives the knee and the shape; its text does not give the height of the floor, which is taken as 20 ms:
every time in the simulator scales with it.
"""
BATCHER = Curve(0.005, 0.002, 0.003, 32, Rule.THROUGHPUT, 64)
"""Seed 003's model, where a request counts as one token: 5 ms for the first and 3 ms for each further one."""
BUNDLED = {"minilm-cpu": "minilm_cpu_profile.json"}
"""Profiles that were measured by `python -m modelserver profile`."""
_MADE = {"a100-like": A100_LIKE, "batcher": BATCHER}


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
        return replace(Curve(**curve), rule=Rule(curve["rule"]))
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
