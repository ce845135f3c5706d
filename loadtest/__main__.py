"""`python -m loadtest`: run tokenbatch here, load it, simulate it and measure it."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import signal
import sys
import threading
from collections.abc import Container, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType

from k8s.pod import heap, open_files


@dataclass(frozen=True, slots=True)
class Command:
    """A command's name, the module with its `add_arguments(parser)` and `run(options) -> int`, and its purpose.

    `calls`: it measures how long answers take, which the collector's pauses in this process must not add to.
    """

    name: str
    module: str
    purpose: str
    calls: bool = False


COMMANDS = (
    Command(
        "up",
        "loadtest.up.command",
        "start Kafka, a model server and an aggregator here, and embed 200 questions",
        calls=True,
    ),
    Command("produce", "loadtest.produce", "send queries through Kafka and collect the replies", calls=True),
    Command("embed", "loadtest.embed", "send queries through gRPC and collect the answers", calls=True),
    Command("plan", "loadtest.plan.command", "compute how many model servers your load needs"),
    Command(
        "simulate",
        "loadtest.simulate.command",
        "compare batching policies in virtual time, with the production scheduler",
    ),
    Command("sweep", "loadtest.simulate.sweep", "find the best setting of each policy in each case, and compare"),
    Command("ablate", "loadtest.simulate.ablation", "measure each mechanism of the scheduler by switching it off"),
    Command(
        "generate",
        "loadtest.simulate.generation.command",
        "simulate an engine that generates, under memory and latency limits",
    ),
    Command("bench", "loadtest.bench.run", "measure the hot paths beside the libraries they use", calls=True),
    Command(
        "bench-gpu",
        "loadtest.bench.gpu.command",
        "measure on a GPU what was designed without one, and decide",
        calls=True,
    ),
)


def parser_of(prog: str, does: str, commands: Sequence[Command], meant: Container[str]) -> argparse.ArgumentParser:
    """The command line of these commands. Only those that are meant are imported: each brings its own libraries."""
    parser = argparse.ArgumentParser(prog=prog, description=does)
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in commands:
        subparser = subparsers.add_parser(
            command.name, help=command.purpose, description=command.purpose[0].upper() + command.purpose[1:]
        )
        if command.name in meant:
            module = importlib.import_module(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run, calls=command.calls, prog=subparser.prog)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    does = "Run tokenbatch here, load it, simulate it and measure it."
    return execute(parser_of("python -m loadtest", does, COMMANDS, arguments[:1]), arguments)


def execute(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """The exit code of the command that the arguments mean."""
    open_files.raise_limit()
    options = parser.parse_args(arguments)
    # What aiokafka retries it also logs as an error; what it gives up on it raises.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        with _sigterm_as_interrupt(), _frozen_heap() if options.calls else nullcontext():
            code: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    return code


@contextmanager
def _frozen_heap() -> Generator[None]:
    """Collections skip what is loaded by now, as in the processes that are measured."""
    thresholds = gc.get_threshold()
    heap.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


@contextmanager
def _sigterm_as_interrupt() -> Generator[None]:
    """A command that SIGTERM ends stops what it started, as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # only that one hears of signals
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
