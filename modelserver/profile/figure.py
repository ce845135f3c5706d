"""Draw a saturation profile as an SVG of three panels: step time, throughput and the use of the device, by tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelserver.profile.measure import Profile
from protos.modelserver.v1.curve import Curve

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP = 720, 210, 80, 20, 56
_INNER = 150
_STYLE = (
    "<style>svg{--ink:#1f2328;--faint:#8b949e;--point:#0a84c1;--fit:#d55e00;font:12px sans-serif;fill:var(--ink)}"
    "@media (prefers-color-scheme:dark){svg{--ink:#e6edf3;--faint:#6e7681}}"
    ".fit{fill:none;stroke:var(--fit);stroke-width:1.5}.floor{stroke:var(--ink);stroke-dasharray:2 3}"
    ".mark{stroke:var(--ink);stroke-dasharray:6 3}.axis{stroke:var(--faint);fill:none}.point{fill:var(--point)}"
    "</style>"
)


@dataclass(frozen=True, slots=True)
class Work:
    """What a token costs: `flops` of the model for each one, and the device's peak in the same unit where it is given.

    The peak is asked for rather than looked up: it depends on dtype, clock and sparsity.
    """

    flops: float
    peak_flops_per_s: float | None = None


def flops_per_token(folder: Path) -> float | None:
    """Twice the parameters that each token is multiplied with, by the headers of the model's safetensors files.

    Embedding tables are left out (a row of them is looked up), and so is attention, which short queries hardly use.
    None when there is no such file.
    """
    parameters = sum(map(_multiplied, folder.glob("*.safetensors")))
    return 2.0 * parameters if parameters else None


def draw(profile: Profile, work: Work | None) -> str:
    """The figure; without `work` the last panel shows the throughput as a share of the best one measured."""
    curve = profile.curve
    best = max(tokens / time_s for tokens, time_s in profile.points)
    unit, label = 100.0 / best, "% of the best throughput"
    if work is not None and work.peak_flops_per_s:
        unit, label = 100.0 * work.flops / work.peak_flops_per_s, f"MFU, % of {work.peak_flops_per_s / 1e12:g} TFLOP/s"
    elif work is not None:
        unit, label = work.flops / 1e9, "model GFLOP/s (give --peak-tflops for MFU)"
    panels = [
        _Panel("step time, ms", lambda _, time_s: 1e3 * time_s),
        _Panel("tokens/s", lambda tokens, time_s: tokens / time_s),
        _Panel(label, lambda tokens, time_s: unit * tokens / time_s),
    ]
    height = _TOP + _PANEL * len(panels)
    title = f"{profile.owner.model}, {profile.owner.dtype}, on {profile.owner.device}"
    what = (
        f"points: medians of {profile.runs} runs; line: fit; dashed: saturation point {curve.saturation_point} tokens"
    )
    drawn = "".join(panel.draw(profile, _TOP + _PANEL * number) for number, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="Saturation profile">{_STYLE}<text x="{_LEFT}" y="18" font-weight="bold">{_escaped(title)}</text>'
        f'<text x="{_LEFT}" y="36">{what} (rule: {curve.rule.value})</text>{drawn}</svg>\n'
    )


@dataclass(frozen=True, slots=True)
class _Panel:
    label: str
    value: Callable[[int, float], float]

    def draw(self, profile: Profile, top: int) -> str:
        curve, points = profile.curve, profile.points
        first, last = points[0][0], max(points[-1][0], curve.saturation_point)
        fitted = _spaced(first, last)
        values = [self.value(*point) for point in points] + [self.value(at, curve.time_s(at)) for at in fitted]
        most = max(values)
        base = top + 20 + _INNER

        def x(tokens: float) -> float:
            share = math.log(tokens / first) / math.log(last / first)
            return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

        def y(value: float) -> float:
            return base - _INNER * value / most

        line = " ".join(f"{x(at):.1f},{y(self.value(at, curve.time_s(at))):.1f}" for at in fitted)
        dots = "".join(
            f'<circle class="point" cx="{x(at):.1f}" cy="{y(self.value(at, time_s)):.1f}" r="3"/>'
            for at, time_s in points
        )
        mark = f"{x(max(first, curve.saturation_point)):.1f}"
        return (
            f'<text x="{_LEFT}" y="{top + 12}">{_escaped(self.label)}</text>'
            f'<path class="axis" d="M{_LEFT} {top + 20}V{base}H{_WIDTH - _RIGHT}"/>{self._ticks(first, last, x, base)}'
            f'<text x="{_LEFT - 6}" y="{top + 26}" text-anchor="end">{most:.4g}</text>'
            f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>{self._floor(curve, y)}'
            f'<line class="mark" x1="{mark}" x2="{mark}" y1="{top + 20}" y2="{base}"/>'
            f'<polyline class="fit" points="{line}"/>{dots}'
        )

    def _ticks(self, first: int, last: int, x: Callable[[float], float], base: int) -> str:
        powers = [2**power for power in range(last.bit_length()) if first <= 2**power <= last]
        return "".join(
            f'<text x="{x(tokens):.1f}" y="{base + 16}" text-anchor="middle">{tokens}</text>' for tokens in powers
        )

    def _floor(self, curve: Curve, y: Callable[[float], float]) -> str:
        """Only step times have one, and only some curves."""
        if self.label != "step time, ms" or curve.floor_s <= curve.fixed_s:
            return ""
        at = f"{y(1e3 * curve.floor_s):.1f}"
        return f'<line class="floor" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'


def _spaced(first: int, last: int) -> Sequence[int]:
    """Totals from the first to the last, evenly on a logarithmic axis."""
    return sorted({round(first * (last / first) ** (step / 80)) for step in range(81)})


def _multiplied(file: Path) -> int:
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    tensors = ((name, entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return sum(math.prod(shape) for name, shape in tensors if "embed" not in name)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
