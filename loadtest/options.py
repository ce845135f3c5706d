"""Command-line options that several commands share, and what they come to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.kit.tally import Tally
from loadtest.questions import read_lines
from loadtest.screen import ERRORS, OUTPUT, summary_table

INPUT_TYPES = ("query", "document")
PRIORITIES = ("interactive", "default", "background")
FAILED, LOST = 2, 1
"""Exit codes: it could not be done at all; something that was sent failed, or got no answer."""


def add_input_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to send")
    group.add_argument("--file", type=Path, metavar="F", help="one query a line; the bundled questions when absent")
    group.add_argument(
        "--count", type=positive_int, metavar="N", help="queries to send; lines repeat when they run out"
    )
    group.add_argument("--unique", action="store_true", help="make all queries different, so that none is coalesced")
    group.add_argument("--model", default="", help="name or alias; the topic's or listener's own when absent")
    group.add_argument(
        "--priority",
        choices=PRIORITIES,
        default="",
        help="the topic's or listener's own when absent",
    )
    group.add_argument(
        "--input-type",
        choices=INPUT_TYPES,
        default="",
        help="puts the model's own prompt for it before each text, if it has one; documents are counted as such",
    )
    group.add_argument(
        "--expire-s", type=positive, metavar="S", help="a request expires S seconds after it was written"
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to keep")
    group.add_argument("--out", type=Path, metavar="FILE.npz", help="arrays line, embedding, code, latency_s")
    group.add_argument("--json", type=Path, metavar="FILE.json", help="the summary")


def add_client_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        type=_name_and_value,
        metavar="NAME=VALUE",
        help="for the Kafka client, such as security_protocol=SASL_PLAINTEXT; may be repeated",
    )


def request_options(options: argparse.Namespace) -> dict[str, Any]:
    """The client package's; what is absent is left to the topic or the listener."""
    given = {name: getattr(options, name) for name in ("model", "priority", "input_type", "expire_s")}
    return {name: value for name, value in given.items() if value}


def texts_to_send(options: argparse.Namespace) -> tuple[list[str], Tally]:
    """The queries that the options ask for, and the empty tally of their outcomes.

    Raises OSError for a file that cannot be read, or not be written in the end, and ValueError for one without lines.
    """
    for file in filter(None, (options.out, options.json)):
        _try_to_write(file)
    lines = read_lines(options.file)
    if not lines:
        raise ValueError(f"{options.file} is empty: it should hold one query a line")
    numbers = np.arange(options.count or len(lines), dtype=np.int64) % len(lines)
    texts = [lines[number] for number in numbers]
    if options.unique:
        texts = unique(texts)
    return texts, Tally(numbers, keep_embeddings=options.out is not None)


def unique(texts: Sequence[str]) -> list[str]:
    """The same texts with a number at the end of each."""
    return [f"{text} {number}" for number, text in enumerate(texts)]


def finish(title: str, tally: Tally, options: argparse.Namespace) -> int:
    """Show the table, write the files requested, and give the exit code: LOST if a query has no vector."""
    summary = tally.summary()
    OUTPUT.print(title)
    OUTPUT.print(summary_table(summary, "documents" if options.input_type == "document" else "queries"))
    try:
        if options.out:
            tally.write_npz(options.out)
        if options.json:
            summary.write_json(options.json)
    except OSError as error:
        return fail(options.prog, error)
    return LOST if summary.lost or summary.errors else 0


def _try_to_write(file: Path) -> None:
    """Raise OSError if it cannot be written; what is in it stays."""
    was_there = file.exists()
    file.open("ab").close()
    if not was_there:
        file.unlink()


def fail(prog: str, error: Exception) -> int:
    """The exit code after an error; it is shown behind the command that was called."""
    ERRORS.print(f"{prog}: {error}", style="bold red", markup=False, soft_wrap=True)
    return FAILED


def positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value
