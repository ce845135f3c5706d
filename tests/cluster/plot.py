"""Draw docs/scaling.svg from what a run of test_scaling.py saw: python -m tests.cluster.plot FILE."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.plots import Plot, Series, draw_column
from tests.chart.rendering import ROOT
from tests.cluster.step import Step
from tests.cluster.watch import Sample

SVG = ROOT / "docs/scaling.svg"
WINDOW_S = 5.0
_P99 = 0.99


def keep(file: Path, step: Step, samples: Sequence[Sample], calls: Sequence[tuple[float, float]]) -> None:
    """Write down what was seen; `calls` are (time, latency) in seconds."""
    told = {"step": asdict(step), "samples": [asdict(each) for each in samples], "calls": list(calls)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told), encoding="utf-8")


def draw(file: Path) -> str:
    """The SVG: load, lag, replicas, token budget and p99 over one axis of time."""
    told = json.loads(file.read_text(encoding="utf-8"))
    samples, step = [Sample(**each) for each in told["samples"]], Step(**told["step"])
    start_s = samples[0].at_s
    most = max(each.lag_records for each in samples)
    lag_gone_s = step.at_s - start_s + step.bound_s(samples)
    bound = (
        f"must be gone: drain_s {step.drain_s:.0f} + pod start {step.pod_start_s(samples):.1f}"
        f" + 2 looks of {step.sync_s:.0f} s"
    )

    def line(name: str, value: Any, *, steps: bool = False, dashed: bool = False) -> Series:
        points = [(each.at_s - start_s, value(each)) for each in samples]
        return Series(name, [(at_s, found) for at_s, found in points if found is not None], steps, dashed)

    replicas = [
        line("required", lambda each: each.required),
        line("asked for", lambda each: each.desired, steps=True, dashed=True),
        line("ready", lambda each: each.ready, steps=True),
    ]
    p99 = [(at_s - start_s, latency_s * 1e3) for at_s, latency_s in percentiles(told["calls"])]
    return draw_column(
        [
            Plot("Model servers follow the work: a step of load on a real cluster", "", "records/s",
                 [Series("sent to Kafka", _rates(samples))]),
            Plot("", "", "records", [
                line("lag", lambda each: each.lag_records),
                Series(bound, [(lag_gone_s, 0), (lag_gone_s, most)], dashed=True),
            ]),
            Plot("", "", "pods", replicas),
            Plot("", "", "tokens", [line("token budget", lambda each: each.token_budget or None)]),
            Plot("", "seconds", "ms", [Series("p99 of gRPC calls", p99)]),
        ],
        "scaling",
    )  # fmt: skip


def _rates(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    span = max(1, round(WINDOW_S / 2 / max(0.1, samples[1].at_s - samples[0].at_s)))
    pairs = zip(samples, samples[span:], strict=False)
    return [(late.at_s - samples[0].at_s, (late.sent - early.sent) / (late.at_s - early.at_s)) for early, late in pairs]


def percentiles(calls: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The 99th percentile of calls that began in each window, at its end."""
    windows: dict[int, list[float]] = {}
    for at_s, latency_s in calls:
        windows.setdefault(int(at_s // WINDOW_S), []).append(latency_s)
    return [
        ((number + 1) * WINDOW_S, sorted(found)[int(_P99 * (len(found) - 1))])
        for number, found in sorted(windows.items())
    ]


if __name__ == "__main__":
    SVG.write_text(draw(Path(sys.argv[1])), encoding="utf-8")
