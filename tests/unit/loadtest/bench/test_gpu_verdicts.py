"""What `make bench-gpu` decides, by made-up figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.lab.bench.gpu.engines import DIRECT, NO_GRAPHS, V1, V2, Engine
from loadtest.lab.bench.gpu.verdicts import graphs, knee, verdicts

CORE = Engine(
    "minilm",
    V2,
    device="card",
    dtype="float16",
    saturation_point=600,
    max_tokens=8192,
    capture_sizes=(256, 512, 4096),
    steps={256: (0.001, 0.0005), 600: (0.001, 0.0009)},
    profile={256: 0.001, 512: 0.001, 4096: 0.004, 8192: 0.0079},
    flops=1e14,
    bytes_per_s=1e12,
    operations_per_token=2e7,
)


def slower(factor: float, side: str) -> Engine:
    steps = {tokens: (factor * step_s, device_s) for tokens, (step_s, device_s) in CORE.steps.items()}
    profile = {tokens: factor * step_s for tokens, step_s in CORE.profile.items()}
    return replace(CORE, side=side, steps=steps, profile=profile)


@pytest.mark.parametrize(
    ("side", "factor", "said"),
    [
        (V1, 2.0, "runner V2 is 2.00 × V1: keep it"),
        (V1, 0.96, "keep it"),
        (V1, 0.9, "set VLLM_USE_V2_MODEL_RUNNER=0"),
        (DIRECT, 1 / 1.2, "direct stays the default"),
        (DIRECT, 1 / 1.05, "make core the default"),
        (NO_GRAPHS, 1.5, "capture larger ones too"),
        (NO_GRAPHS, 1.0, "capture none"),
    ],
)
def test_a_runner_an_engine_or_graphs_are_chosen_by_how_much_faster_they_are(
    side: str, factor: float, said: str
) -> None:
    assert said in verdicts([CORE, slower(factor, side)], [])[0]


def test_graphs_are_captured_up_to_the_largest_size_that_they_pay_for() -> None:
    plain = slower(1.5, NO_GRAPHS)
    level = replace(plain, profile={**plain.profile, 4096: CORE.profile[4096]})
    assert "pay up to 512 of 4096 tokens: capture none above 512" in graphs(CORE, level)
    assert "no graphs were captured" in graphs(replace(CORE, capture_sizes=()), plain)


def test_a_profile_that_still_gains_from_its_last_doubling_was_not_measured_far_enough() -> None:
    assert knee(CORE).endswith("1.01 ×: far enough")
    assert "raise _LARGEST_GPU_STEP" in knee(replace(CORE, profile={4096: 0.004, 8192: 0.006}))
    assert knee(replace(CORE, profile={})) == "saturation point 600 tokens"
