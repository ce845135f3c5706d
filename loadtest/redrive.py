"""`loadtest redrive`: put dead letters back on their topics."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from rich.table import Column, Table

from loadtest.clients.dead_letters import Wanted
from loadtest.clients.kafka_connection import KafkaRunError
from loadtest.clients.redrive import Redriven, RedrivePlan, redrive
from loadtest.options import LOST, add_client_option, fail, positive, positive_int
from loadtest.screen import OUTPUT, bars
from loadtest.stack.addresses import running_stack

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d+)([smhd])")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where")
    group.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka's; absent: that of the stack running here")
    group.add_argument("--from", dest="letters_topic", required=True, metavar="TOPIC-dlt", help="the dead letters")
    group.add_argument("--to", default="", metavar="TOPIC", help="absent: each dead letter's own original topic")
    group.add_argument(
        "--group", metavar="G", help="consumer group that remembers what was put back (redrive.TOPIC-dlt)"
    )
    add_client_option(parser)
    group = parser.add_argument_group("which dead letters; all when none of these is given")
    group.add_argument("--code", action="append", default=[], metavar="C", help="with this error code; may be repeated")
    group.add_argument("--since", type=moment, default=-inf, metavar="TIME", help="ISO 8601 (UTC), or 90m, 2h, 1d ago")
    group.add_argument("--until", type=moment, default=inf, metavar="TIME", help="the same; this moment excluded")
    group.add_argument("--key", metavar="K", help="with this key")
    group.add_argument("--count", type=positive_int, metavar="N", help="no more than this many")
    group = parser.add_argument_group("how")
    group.add_argument(
        "--rate", type=positive, metavar="R", help="dead letters per second; when absent, as many as possible"
    )
    group.add_argument(
        "--max-redrives",
        type=positive_int,
        default=3,
        metavar="N",
        help="leave dead letters that were put back this often already (%(default)s)",
    )
    group.add_argument("--dry-run", action="store_true", help="only say what would be put back")
    group.add_argument("--json", type=Path, metavar="FILE.json", help="the summary")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 when a dead letter that was requested is still there, 2 when it could not be done."""
    if options.to == options.letters_topic:
        return fail(
            "redrive", ValueError(f"--to {options.to}: the dead letters would only go round in their own topic")
        )
    counts = Redriven()
    try:
        plan = RedrivePlan(
            bootstrap=options.bootstrap or running_stack().kafka,
            letters_topic=options.letters_topic,
            group=options.group or f"redrive.{options.letters_topic}",
            wanted=Wanted(
                codes=frozenset(options.code),
                since_s=options.since,
                until_s=options.until,
                key=options.key.encode() if options.key is not None else None,
                topic=options.to,
                max_redrives=options.max_redrives,
            ),
            count=options.count,
            rate=options.rate,
            dry=options.dry_run,
            client=dict(options.client),
        )
        with _bar(counts) as move:
            asyncio.run(redrive(plan, counts, move))
    except (KafkaRunError, ValueError, OSError) as error:
        return fail("redrive", error)
    if options.json:
        figures = {field.name: getattr(counts, field.name) for field in fields(counts)}
        options.json.write_text(json.dumps(figures | {"dry_run": plan.dry}, indent=2) + "\n")
    OUTPUT.print(
        f"Dead letters of {plan.letters_topic} at {plan.bootstrap}{': nothing was written' if plan.dry else ''}"
    )
    OUTPUT.print(_table(counts, "would go back" if plan.dry else "put back"))
    return LOST if counts.stuck else 0


def moment(text: str) -> float:
    """Unix seconds of a time in ISO 8601, UTC by default, or of a duration before now."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time() - int(ago[1]) * _UNITS_S[ago[2]]
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


@contextmanager
def _bar(counts: Redriven) -> Generator[Callable[[], None]]:
    with bars() as progress:
        bar = progress.add_task("dead letters read", total=None)

        def move() -> None:
            label = f"dead letters read, {counts.put_back} put back"
            progress.update(bar, total=max(counts.total, counts.read), completed=counts.read, description=label)

        yield move
        move()


def _table(counts: Redriven, done: str) -> Table:
    table = Table("", Column(justify="right"), show_header=False)
    table.add_row("dead letters read", f"{counts.read:,}")
    table.add_row(done, f"{counts.put_back:,}", style="green")
    for code, count in sorted(counts.codes.items()):
        table.add_row(f"  failed with {code}", f"{count:,}")
    for topic, count in sorted(counts.topics.items()):
        table.add_row(f"  to {topic}", f"{count:,}")
    table.add_row("put back by an earlier run", f"{counts.done_before:,}")
    table.add_row("not asked for", f"{counts.not_wanted:,}")
    for why, count in sorted(counts.stuck.items()):
        table.add_row(f"stay: {why}", f"{count:,}", style="bold red")
    return table
