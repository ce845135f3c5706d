"""Show how far each part of a stack is: lines that change on a terminal, lines that add up in a log."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import ceil
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


@dataclass(slots=True)
class _Stage:
    began_s: float
    detail: str = ""
    bar: TaskID | None = None


@dataclass(slots=True)
class Stages:
    """Stages by name, in the order in which they begin."""

    console: Console
    _stages: dict[str, _Stage] = field(default_factory=dict[str, _Stage])
    _live: Progress | None = None

    def __enter__(self) -> Self:
        """Start drawing, where there is a terminal to draw on."""
        if self.console.is_terminal:
            columns = (SpinnerColumn(finished_text="[green]✔"), TextColumn("{task.description}"), TimeElapsedColumn())
            self._live = Progress(*columns, console=self.console)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what was drawn, and draw no more."""
        if self._live:
            self._live.stop()
            self._live = None

    def begin(self, name: str, detail: str) -> None:
        stage = self._stages[name] = _Stage(time.monotonic())
        if self._live:
            stage.bar = self._live.add_task(name, total=1)
        self.tell(name, detail)

    def tell(self, name: str, detail: str) -> None:
        stage = self._stages[name]
        if detail == stage.detail:
            return
        stage.detail = detail
        if self._live and stage.bar is not None:
            self._live.update(stage.bar, description=f"{name:<13} {detail}")
        else:
            self.console.print(f"==> {name}: {detail}", markup=False, soft_wrap=True)

    def count(self, name: str, detail: str, done: int, total: int) -> None:
        """How many there are of all that it needs; a log hears of every quarter."""
        if self._live or done % ceil(total / 4) == 0:
            self.tell(name, f"{detail}, {done} of {total}")

    def end(self, name: str, detail: str) -> None:
        stage = self._stages[name]
        if self._live and stage.bar is not None:
            self._live.update(stage.bar, completed=1)
            self.tell(name, detail)
        else:
            self.tell(name, f"{detail} ({time.monotonic() - stage.began_s:.1f} s)")
