"""What a section of the report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot: its name and points; `steps` draws it as a staircase.

    `look` is its colour and mark, by number; that of its place among the lines when absent.
    """

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False
    dashed: bool = False
    look: int | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines, or bars where `bars` is set, over one pair of axes; `limit` is a horizontal mark with its name.

    `x_names` stand below x of 0, 1, 2 and so on instead of numbers.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    bars: bool = False
    log_y: bool = False
    limit: tuple[str, float] | None = None
    y_max: float | None = None
    from_zero: bool = False
    x_names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by name, rows of text; the first `names` columns are aligned left, all others hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """A question, its answer in a sentence or two, plots, a table, and the command that makes the figures again."""

    name: str
    title: str
    text: str
    plots: Sequence[Plot]
    table: Table
    command: str
    seed: str
