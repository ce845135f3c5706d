"""What a person at the terminal sees: progress while it runs, tables when it is done."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.tally import Summary, Tally

ERRORS = Console(stderr=True, highlight=False)
OUTPUT = Console(highlight=False)


@contextmanager
def exchange_bars(tally: Tally, way: str = "") -> Generator[Callable[[], None]]:
    """Two bars, sent and answered; call what it yields to move them. `way` stands before their names."""
    total = len(tally.lines)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERRORS) as progress:
        sent = progress.add_task(f"{way} sent".lstrip(), total=total)
        answered = progress.add_task("", total=total)

        def move() -> None:
            failed = sum(tally.errors.values())
            progress.update(sent, completed=tally.sent)
            label = f"{way} answered" + (f", {failed} with an error" if failed else "")
            progress.update(answered, completed=tally.replies, description=label.lstrip())

        yield move
        move()


def milliseconds(seconds: float | None) -> str:
    """Seconds for a reader; a dash for none."""
    return "–" if seconds is None else f"{seconds * 1e3:.1f} ms"


def summary_table(summary: Summary) -> Table:
    """A run's summary, one figure a line."""
    table = Table(show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_row("queries sent", f"{summary.sent:,}")
    table.add_row("replies", f"{summary.replies:,}")
    table.add_row("lost", f"{summary.lost:,}", style="bold red" if summary.lost else "green")
    table.add_row("duplicates", f"{summary.duplicates:,}")
    if summary.mismatched:
        table.add_row("replies that contradict their request", f"{summary.mismatched:,}", style="bold red")
    for code, count in summary.errors.items():
        table.add_row(f"errors: {code}", f"{count:,}", style="yellow")
    for name in ("p50", "p90", "p99", "p99.9"):
        table.add_row(f"latency {name}", milliseconds(summary.latency_s.get(name)))
    table.add_row("queries/s", f"{summary.queries_per_s:,.0f}")
    table.add_row("tokens/s", f"{summary.tokens_per_s:,.0f}")
    return table
