"""Draw plots as an SVG file, in light and in dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Spread = tuple[float, float]
"""The least and the most of what a point is the median of."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot: its name and points; `steps` draws it as a staircase; `spread` of points by their x."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False
    dashed: bool = False
    spread: Mapping[float, Spread] = field(default_factory=dict[float, Spread])


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines, or bars where `bars` is set, over one pair of axes.

    `x_names` stand below x of 0, 1, 2 and so on instead of numbers. Of the first `own` bars the names are bold, and the
    others are pale.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    bars: bool = False
    from_zero: bool = False
    x_names: Sequence[str] = ()
    own: int = 0


_INK, _FAINT = "#010203", "#040506"
"""Stand-ins, replaced by the page's own colours."""
COLOURS = ("#d55e00", "#0a84c1", "#159e6e", "#b85fb0", "#b8860b", "#7a8794")
"""Told apart by people who see colours differently (after Okabe and Ito), on white and on black."""
_MARKS = ("o", "s", "^", "D", "v", "P")
_PALE = 0.4
_AXIS_CHARACTERS = 36
"""Of a line beside the y axis: more are longer than the axis."""
_NAMED_INSIDE = 3
_MARKED = 30
"""A line of fewer points than these has them marked."""
_ID = re.compile(r'(id="|url\(#|href="#)')
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _FAINT,
    "grid.alpha": 0.4,
    "legend.frameon": False,
}


_ALONE = (
    "<style>svg { --ink: #1f2328; --faint: #8b949e; }"
    " @media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --faint: #6e7681; } }</style>"
)


def draw(plot: Plot, name: str) -> str:
    """The plot as an SVG file; `name` keeps its ids apart from those of others on a page."""
    return _alone(_drawn([plot], name, 3.6))


def draw_column(plots: Sequence[Plot], name: str) -> str:
    """Plots one above the other over one x axis, as an SVG file."""
    return _alone(_drawn(plots, name, 1.7 * len(plots)))


def _alone(svg: str) -> str:
    end = svg.index(">") + 1
    return f"{svg[:end]}{_ALONE}{svg[end:]}\n"


def _drawn(plots: Sequence[Plot], name: str, height: float) -> str:
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=(6.4, height), layout="constrained")
        figure.patch.set_visible(False)
        column = figure.subplots(len(plots), sharex=True, squeeze=False)[:, 0]
        for axes, plot in zip(column, plots, strict=True):
            _fill(axes, plot)
            _name(axes, figure, alone=len(plots) == 1, bars=plot.bars)
        column[-1].set_xlabel(plots[-1].x_label)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(written.getvalue(), name, plots[0].title)


def _fill(axes: Axes, plot: Plot) -> None:
    axes.patch.set_visible(False)
    axes.grid(visible=True, linewidth=0.5)
    axes.set_title(plot.title, fontsize=10, loc="left")
    axes.set_ylabel(fill(plot.y_label, _AXIS_CHARACTERS))
    _bars(axes, plot) if plot.bars else _lines(axes, plot)
    if plot.from_zero:
        axes.set_ylim(bottom=0)
    if plot.x_names:
        names = axes.set_xticks(range(len(plot.x_names)), plot.x_names, rotation=30, ha="right", fontsize=8)
        for name in names[: plot.own]:
            name.label1.set_fontweight("bold")


def _name(axes: Axes, figure: Figure, *, alone: bool, bars: bool) -> None:
    """Few lines are named among them, where there is room; many, and bars, below, where no name can cover one.

    A line on its own that is called what its axis is called needs no name.
    """
    handles, labels = axes.get_legend_handles_labels()
    if labels == [axes.get_ylabel()]:
        return
    if alone and (bars or len(handles) > _NAMED_INSIDE):
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    else:
        axes.legend(fontsize=8)


def _lines(axes: Axes, plot: Plot) -> None:
    for number, series in enumerate(plot.series):
        xs = [x for x, _ in series.points]
        ys = [y for _, y in series.points]
        axes.plot(
            xs,
            ys,
            label=series.name,
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKS[number % len(_MARKS)] if len(xs) < _MARKED and not series.steps else None,
            markersize=4,
            linewidth=1.5,
            linestyle="--" if series.dashed else "-",
            drawstyle="steps-post" if series.steps else "default",
            zorder=3.0 - 0.01 * number,  # the first one on top
        )
        _spread(axes, series, COLOURS[number % len(COLOURS)])


def _bars(axes: Axes, plot: Plot) -> None:
    width = 0.8 / len(plot.series)
    for number, series in enumerate(plot.series):
        step = series.points[1][0] - series.points[0][0] if len(series.points) > 1 else 1.0
        offset = step * (width * (number + 0.5) - 0.4)
        bars = axes.bar(
            [x + offset for x, _ in series.points],
            [y for _, y in series.points],
            width=step * width,
            label=series.name,
            color=COLOURS[number % len(COLOURS)],
        )
        for bar in bars[plot.own :] if plot.own else ():
            bar.set_alpha(_PALE)
        _spread(axes, series, _INK, offset)


def _spread(axes: Axes, series: Series, colour: str, offset: float = 0.0) -> None:
    """A line from the least to the most of each point that has them."""
    for x, (least, most) in series.spread.items():
        axes.errorbar(x + offset, least, yerr=[[0.0], [most - least]], ecolor=colour, elinewidth=1, capsize=2, zorder=4)


def _inlined(svg: str, name: str, title: str) -> str:
    """The SVG element alone, with ids of its own and the page's ink."""
    svg = svg[svg.index("<svg") :]
    svg = _ID.sub(rf"\g<1>{name}-", svg)
    svg = svg.replace(_INK, "var(--ink)").replace(_FAINT, "var(--faint)")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
