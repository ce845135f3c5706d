"""`python -m loadtest`: one command for each thing to do to a tokenbatch."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from aggregator.observability import heap


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
        "up", "loadtest.up", "start Kafka, a model server and an aggregator here, and embed 200 questions", calls=True
    ),
    Command("produce", "loadtest.produce", "send queries through Kafka and collect the replies", calls=True),
    Command("embed", "loadtest.embed", "send queries through gRPC and collect the answers", calls=True),
    Command("redrive", "loadtest.redrive", "put dead letters back to where they came from"),
    Command("simulate", "loadtest.simulate.command", "compare ways of batching in virtual time, on the real core"),
    Command("plan", "loadtest.plan.command", "say how many model servers a load of your own takes"),
    Command("sweep", "loadtest.simulate.sweep", "find each policy's best setting in each case, and compare"),
    Command("ablate", "loadtest.simulate.ablation", "switch each mechanism of the core off, and see"),
    Command("generate", "loadtest.generation.command", "simulate a generating engine under the core's limits"),
    Command("validate", "loadtest.validate.command", "hold the simulator against the running system, here", calls=True),
    Command("report", "loadtest.report.command", "simulate, and write one page with plots and tables"),
    Command("bench", "loadtest.bench.run", "measure the hot paths, side by side with what they stand on", calls=True),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the command that was asked for."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = commands.add_parser(command.name, help=command.purpose, description=command.purpose.capitalize())
        # Only the command that is meant is imported: each brings its own libraries.
        if arguments and arguments[0] == command.name:
            module = importlib.import_module(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run, calls=command.calls)
    options = parser.parse_args(arguments)
    # What aiokafka retries it also logs as an error; what it gives up on it raises.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        with heap.frozen() if options.calls else nullcontext():
            code: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
