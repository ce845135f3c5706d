"""The command's options, its progress, and its result."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from aggregator.errors import Code
from aggregator.settings.aggregator import ENV_PREFIX, AggregatorSettings
from aggregator.wings.redrive.dead_letters import Wanted
from aggregator.wings.redrive.redrive import RedriveError, Redriven, RedrivePlan, redrive
from k8s.pod.errors import StartError
from k8s.pod.help import add_config
from k8s.pod.settings import load

PURPOSE = "put dead letters back on their Kafka topics, after a fix"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d+)([smhd])")
_SHOWN_EVERY_S = 2.0
"""A log of a run of an hour stays under 2,000 lines, and a person sees that it moves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "the aggregator's settings as YAML")
    group = parser.add_argument_group("where; how to log in is among the aggregator's settings")
    group.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka's; absent: kafka.bootstrap_servers")
    group.add_argument("--from", dest="letters_topic", required=True, metavar="TOPIC-dlt", help="the dead letters")
    group.add_argument("--to", default="", metavar="TOPIC", help="absent: each dead letter's own original topic")
    group.add_argument(
        "--group", metavar="G", help="consumer group that remembers what was put back (redrive.TOPIC-dlt)"
    )
    group = parser.add_argument_group("which dead letters; all when none of these is given")
    group.add_argument(
        "--code",
        action="append",
        default=[],
        type=known_code,
        metavar="C",
        help="with this error code, such as INTERNAL, in any case; may be repeated",
    )
    group.add_argument("--since", type=moment, default=-inf, metavar="TIME", help="ISO 8601 (UTC), or 90m, 2h, 1d ago")
    group.add_argument("--until", type=moment, default=inf, metavar="TIME", help="the same; this moment excluded")
    group.add_argument("--key", metavar="K", help="with this key")
    group.add_argument("--count", type=_whole, metavar="N", help="no more than this many")
    group = parser.add_argument_group("how")
    group.add_argument(
        "--rate", type=_rate, metavar="R", help="dead letters per second; when absent, as many as possible"
    )
    group.add_argument(
        "--max-redrives",
        type=_whole,
        default=3,
        metavar="N",
        help="leave dead letters that were put back this often already (%(default)s)",
    )
    group.add_argument("--dry-run", action="store_true", help="only say what would be put back")
    group.add_argument("--json", type=Path, metavar="FILE.json", help="the summary")


def run(options: argparse.Namespace, settings_type: type[AggregatorSettings]) -> int:
    """The exit code: 0; 1 if a requested dead letter is still there, or none is like that; 2 if it cannot be done."""
    # aiokafka logs each error that it retries, and raises the ones that it gives up on.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    counts = Redriven()
    try:
        plan = _plan(options, settings_type)
        if options.json:
            options.json.touch()  # before all work: what cannot be written is known now
        asyncio.run(redrive(plan, counts, _progress(counts)))
        if options.json:
            figures = {field.name: getattr(counts, field.name) for field in fields(counts)}
            options.json.write_text(json.dumps(figures | {"dry_run": plan.dry}, indent=2) + "\n")
    except (RedriveError, StartError, OSError) as error:
        print(f"tokenbatch redrive: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    for line in _result(plan, counts):
        print(line)
    none_matched = plan.wanted.is_selective and counts.read and not counts.matched
    if none_matched:
        print(f"tokenbatch redrive: none of the {counts.read:,} dead letters is as requested", file=sys.stderr)
    return 1 if counts.stuck or none_matched else 0


def _plan(options: argparse.Namespace, settings_type: type[AggregatorSettings]) -> RedrivePlan:
    """Raises StartError, and RedriveError for options that contradict each other."""
    if options.to == options.letters_topic:
        raise RedriveError(f"--to {options.to}: the dead letters would only go round in their own topic")
    kafka = load(settings_type, ENV_PREFIX, options.config).kafka
    if options.bootstrap:
        kafka = kafka.model_copy(update={"bootstrap_servers": options.bootstrap})
    return RedrivePlan(
        kafka=kafka,
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
    )


def known_code(text: str) -> str:
    """The name of an error code, given in any case, with hyphens or underscores."""
    known = [each.name for each in Code if each is not Code.OK]
    name = text.upper().replace("-", "_")
    if name not in known:
        raise argparse.ArgumentTypeError(f"{text} is no error code: use {', '.join(known)}")
    return name


def moment(text: str) -> float:
    """Unix seconds of a time in ISO 8601, UTC by default, or of a duration before now."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time() - int(ago[1]) * _UNITS_S[ago[2]]
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


def _whole(text: str) -> int:
    return int(_rate(str(int(text))))


def _rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def _progress(counts: Redriven) -> Callable[[], None]:
    """Prints how far it is on standard error, now and then."""
    shown_s = time.monotonic()

    def show() -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= _SHOWN_EVERY_S:
            shown_s = time.monotonic()
            total = max(counts.total, counts.read)
            print(f"{counts.read:,} of {total:,} dead letters read, {counts.put_back:,} put back", file=sys.stderr)

    return show


def _result(plan: RedrivePlan, counts: Redriven) -> Iterator[str]:
    note = ": nothing was written" if plan.dry else ""
    yield f"Dead letters of {plan.letters_topic} at {plan.kafka.bootstrap_servers}{note}"
    rows = [
        ("dead letters read", counts.read),
        ("would go back" if plan.dry else "put back", counts.put_back),
        *((f"  failed with {code}", count) for code, count in sorted(counts.codes.items())),
        *((f"  to {topic}", count) for topic, count in sorted(counts.topics.items())),
        ("put back by an earlier run", counts.done_before),
        ("not asked for", counts.not_wanted),
        *((f"stay: {why}", count) for why, count in sorted(counts.stuck.items())),
    ]
    width = max(len(name) for name, _ in rows)
    for name, count in rows:
        yield f"  {name:{width}}  {count:>9,}"
