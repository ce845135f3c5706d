"""Time the engine's steps by themselves: as a whole, and the device's part of them; and the device at its best.

`python -m loadtest.bench.programs.engine_steps --tokens 256 600` takes the model server's settings from the
environment.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from k8s.pod import logs
from k8s.pod.settings import load
from loadtest.bench.gpu.models import make_missing
from modelserver.__main__ import prepare
from modelserver.all_settings import AllModelServerSettings
from modelserver.engines.choice import build
from modelserver.engines.engine import Engine, Task
from modelserver.model_files import ModelFiles
from modelserver.process_env import needs_v1_runner, prepare_engine_env, reexecution
from modelserver.registry import ENGINE_WINGS
from modelserver.settings import ENV_PREFIX, ModelServerSettings
from modelserver.startup import warm_up
from modelserver.wings.profile.measure import measure, production_mix
from modelserver.wings.profile.profiler import owner_of, sweep_plan

_SEED = 20_240_503
_STEPS, _TRACED = 9, 3
_EQUAL, _LENGTHS = 600, (6, 20, 60, 200)
"""Tokens of steps that are filled by queries of several lengths, all divisors."""
_UNEQUAL = "200 beside 6"
"""One long query beside short ones: what a model computes slowly that pads its queries to the longest."""
_LARGE, _SMALL = 8192, 512
"""Rows of the matrices that are multiplied on a GPU and on a CPU."""


def time_steps(settings: ModelServerSettings, files: ModelFiles, totals: Sequence[int]) -> None:
    """Write one line of JSON about the engine, its profile, and steps of these totals of tokens. Raises CannotStart.

    `steps` has, by total, the seconds of a step (median) and those in which the device computed.
    """
    began_s = time.monotonic()
    engine = build(settings, files, Task.EMBED, ENGINE_WINGS).engine
    warm_up(engine)
    load_s = time.monotonic() - began_s
    facts = engine.facts
    profile = measure(engine, owner_of(settings, facts, files), sweep_plan(settings, facts))
    rng = np.random.default_rng(_SEED)
    steps = {total: _step(engine, total, rng) for total in totals if total <= facts.step_token_capacity}
    flops, bytes_per_s = device_limits(facts.dtype)
    curve = profile.curve
    found = {
        "device": facts.device,
        "dtype": facts.dtype,
        "load_s": load_s,
        "saturation_point": curve.saturation_point,
        "max_tokens": curve.max_tokens,
        "capture_sizes": curve.capture_sizes,
        "steps": steps,
        "lengths": lengths(engine, rng),
        "profile": dict(profile.points),
        "flops": flops,
        "bytes_per_s": bytes_per_s,
    }
    print(json.dumps(found), flush=True)
    engine.close()


def _step(engine: Engine, total: int, rng: np.random.Generator) -> tuple[float, float]:
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - loaded by the engine

    def took_s() -> float:
        step = engine.prepare(*production_mix(total, engine.facts, rng))
        began_s = time.perf_counter()
        step.execute()
        return time.perf_counter() - began_s

    step_s = median([took_s() for _ in range(_STEPS + 1)][1:])
    activity = ProfilerActivity.CPU if engine.facts.on_cpu else ProfilerActivity.CUDA
    with profile(activities=[activity]) as traced:
        for _ in range(_TRACED):
            took_s()
    name = "self_cpu_time_total" if engine.facts.on_cpu else "self_device_time_total"
    return step_s, sum(getattr(event, name) for event in traced.key_averages()) / _TRACED / 1e6


def lengths(engine: Engine, rng: np.random.Generator) -> dict[str, float]:
    """Seconds (medians) of steps of 600 tokens, by the tokens of their queries; sides take turns."""
    facts = engine.facts
    ids, usual = production_mix(_EQUAL, facts, rng)
    sizes = {"usual": usual, _UNEQUAL: np.array([200, *[6] * 66, 4], np.int32)}
    sizes |= {str(length): np.full(_EQUAL // length, length, np.int32) for length in _LENGTHS}
    times = {name: list[float]() for name, each in sizes.items() if each.max() <= facts.max_input_tokens}
    for _ in range(_STEPS + 1):
        for name, found in times.items():
            step = engine.prepare(rng.permutation(ids), sizes[name])
            began_s = time.perf_counter()
            step.execute()
            found.append(time.perf_counter() - began_s)
    return {name: median(found[1:]) for name, found in times.items()}


def device_limits(dtype: str) -> tuple[float, float]:
    """Operations a second of a large product of matrices, and bytes a second of a copy (read and written)."""
    import torch  # noqa: PLC0415 - loaded by the engine

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = _LARGE if device == "cuda" else _SMALL
    left, right = (torch.rand(size, size, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    copied = torch.empty_like(left)

    def best_s(run: str) -> float:
        times: list[float] = []
        for _ in range(_STEPS):
            began_s = time.perf_counter()
            torch.mm(left, right, out=copied) if run == "mm" else copied.copy_(left)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began_s)
        return min(times)

    return 2.0 * size**3 / best_s("mm"), 2.0 * left.nbytes / best_s("copy")


def prepared(module: str) -> tuple[ModelServerSettings, ModelFiles]:
    """The settings and the model's files, in an environment as a model server's. Raises StartError."""
    if (env := reexecution(os.environ)) is not None:
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], env)  # noqa: S606 - this very program
    settings = load(AllModelServerSettings, ENV_PREFIX)
    logs.configure("modelserver", settings.telemetry.log_level)
    logging.getLogger("vllm").setLevel("ERROR")
    prepare_engine_env(os.environ, local_model=True, v1_runner=needs_v1_runner(settings.engine.kind, causal=True))
    make_missing(Path(settings.model.path))
    return settings, prepare(settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", required=True, help="of each step")
    options = parser.parse_args()
    time_steps(*prepared("loadtest.bench.programs.engine_steps"), options.tokens)


if __name__ == "__main__":
    main()
