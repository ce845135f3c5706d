"""Let sides take turns, and make figures of what they gave: medians, and ratios turn by turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from loadtest.bench.figures import Figure
from loadtest.screen import ERRORS

T = TypeVar("T")


def in_turns(
    bench: str, repeats: int, sides: Mapping[str, Callable[[int], T]], said: Callable[[T], str]
) -> dict[str, list[T]]:
    """What each side gave in each turn, whose number it gets; every other turn backwards. `said`: a turn in words."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(repeats):
        order = list(sides.items())
        for name, side in order if turn % 2 == 0 else reversed(order):
            found[name].append(side(turn))
        words = ", ".join(f"{name} {said(turns[-1])}" for name, turns in found.items())
        ERRORS.print(f"{bench} {turn + 1} of {repeats}: {words}")
    return found


@dataclass(frozen=True, slots=True)
class Medians:
    """Makes the figures of one benchmark, each with the bound that it should keep, if there is one."""

    bench: str
    repeats: int
    notes: str
    bounds: Mapping[str, str] = field(default_factory=dict[str, str])

    def of(self, figure: str, unit: str, values: Iterable[float], notes: str = "") -> Figure:
        """The median over all turns, and how far they differ."""
        turns = sorted(values)
        value, spread = statistics.median(turns), (turns[0], turns[-1]) if len(turns) > 1 else None
        bound = self.bounds.get(figure, "")
        return Figure(self.bench, figure, value, unit, self.repeats, notes or self.notes, bound, spread)

    def ratio(self, figure: str, one: Iterable[float], other: Iterable[float], notes: str = "") -> Figure:
        """The median of the ratios turn by turn."""
        return self.of(figure, "ratio", (a / b for a, b in zip(one, other, strict=True)), notes)
