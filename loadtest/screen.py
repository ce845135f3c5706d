"""The output for a person at the terminal: progress while it runs, tables when it is done."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

from loadtest.kit.tally import Summary, Tally

ERRORS = Console(stderr=True, highlight=False)
OUTPUT = Console(highlight=False)
_MINUTE_S = 60


class Pace(ProgressColumn):
    """A task's rate and the time that is left, by its last half minute."""

    @override
    def render(self, task: Task) -> Text:
        rate = task.finished_speed if task.finished else task.speed
        return Text(pace(rate, None if task.finished else task.time_remaining), style="cyan")


def pace(per_s: float | None, left_s: float | None) -> str:
    """A rate and the time left, in words; empty while neither is known."""
    words = (f"{per_s:,.0f}/s" if per_s else "", f"{duration(left_s)} left" if left_s else "")
    return ", ".join(filter(None, words))


def bars(*, transient: bool = False) -> Progress:
    """Bars that are still to be added, each with its name, count, time, rate and time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Pace())
    return Progress(*columns, console=ERRORS, transient=transient)


def plain_table(*titles: str, names: int = 1) -> Table:
    """A table without a frame: the first `names` columns hold names, all others figures."""
    columns = [Column(title, no_wrap=True) for title in titles[:names]]
    return Table(*columns, *(Column(title, justify="right") for title in titles[names:]), box=None, pad_edge=False)


def wide(width: int) -> Console:
    """The output, at least so wide, also where the terminal's width is unknown."""
    return Console(highlight=False, width=max(OUTPUT.width, width))


@contextmanager
def exchange_bars(tally: Tally, way: str = "") -> Generator[Callable[[], None]]:
    """Two bars, sent and answered; call what it yields to move them. `way` stands before their names."""
    total = len(tally.lines)
    with bars() as progress:
        sent = progress.add_task(f"{way} sent".lstrip(), total=total)
        answered = progress.add_task("", total=total)

        def move() -> None:
            failed = sum(tally.errors.values())
            progress.update(sent, completed=tally.sent)
            label = f"{way} answered" + (f", {failed} with an error" if failed else "")
            progress.update(answered, completed=tally.replies, description=label.lstrip())

        yield move
        move()


def duration(seconds: float | None) -> str:
    """Seconds for a reader, such as 12.3 ms, 4.5 s or 2 min 37 s; a dash for none."""
    if seconds is None:
        return "–"
    if seconds < 1.0:
        return f"{seconds * 1e3:.1f} ms"
    if round(seconds, 1) < _MINUTE_S:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), _MINUTE_S)
    hours, rest_min = divmod(minutes, _MINUTE_S)
    return f"{hours} h {rest_min} min" if hours else f"{minutes} min {rest_s} s"


def counted(number: float, noun: str, plural: str = "") -> str:
    """A number with its noun, such as 1 record, 2 records or 1 query."""
    return f"{number:,.0f} {noun if number == 1 else plural or noun + 's'}"


def summary_table(summary: Summary, texts: str = "queries") -> Table:
    """A run's summary, one figure a line; `texts`: what was embedded."""
    table = Table("", Column(justify="right"), show_header=False)
    table.add_row(f"{texts} sent", f"{summary.sent:,}")
    table.add_row("replies", f"{summary.replies:,}")
    table.add_row("lost", f"{summary.lost:,}", style="bold red" if summary.lost else "green")
    table.add_row("duplicates", f"{summary.duplicates:,}")
    if summary.mismatched:
        table.add_row("replies that contradict their request", f"{summary.mismatched:,}", style="bold red")
    for code, count in summary.errors.items():
        table.add_row(f"errors: {code}", f"{count:,}", style="yellow")
    for name in ("p50", "p90", "p99", "p99.9"):
        table.add_row(f"latency {name}", duration(summary.latency_s.get(name)))
    table.add_row("took", duration(summary.duration_s))
    table.add_row(f"{texts}/s", f"{summary.queries_per_s:,.0f}")
    table.add_row("tokens/s", f"{summary.tokens_per_s:,.0f}")
    return table
