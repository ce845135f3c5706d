"""Run the aggregator: settings, adapters, one task group; SIGTERM drains. Or run a command of a wing instead."""

from __future__ import annotations

if __name__ == "__main__":
    from k8s.pod.begin import begin

    begin()

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import ModuleType

import uvloop

from aggregator.all_settings import AllSettings
from aggregator.errors import ungrouped
from aggregator.settings.aggregator import ENV_PREFIX, AggregatorSettings
from aggregator.wings.check.command import check
from aggregator.wings.redrive import command as redrive
from aggregator.wings.scaler import command as scaler
from aggregator.wings.smoke import command as smoke
from k8s.pod import heap, logs
from k8s.pod.errors import StartError
from k8s.pod.help import parser_of
from k8s.pod.setting_names import unread
from k8s.pod.settings import as_text, load

_LOG = logging.getLogger(__name__)
_BAD_START = 2

COMMANDS: Mapping[str, ModuleType] = {
    "redrive": redrive,
    "scaler": scaler,
    "smoke": smoke,
}
"""What runs instead of serving, by name; each module has a PURPOSE, add_arguments and run."""

CHECKS: Sequence[Callable[..., Awaitable[int]]] = [
    check,
]
"""What `--check` does; without one there is no such option."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after a drain, 1 after a failure at work, 2 when it could not start."""
    parser = parser_of(
        "aggregator",
        "Batch requests from Kafka, Redis, gRPC and HTTP by token count, and send the batches to model servers.",
        AllSettings,
        ENV_PREFIX,
        check="try every file, port, name, broker and server that the settings name, and exit" if CHECKS else "",
    )
    commands = parser.add_subparsers(title="instead of serving", metavar="COMMAND")
    for name, module in COMMANDS.items():
        purpose = module.PURPOSE
        command = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    if "run" in options:
        code: int = options.run(options, AllSettings)
        return code
    try:
        settings = load(AllSettings, ENV_PREFIX, options.config)
        if options.show_settings:
            print(as_text(settings), end="")
        if CHECKS and options.check:
            return uvloop.run(_check(settings))
        if options.show_settings:
            return 0
        logs.configure("tokenbatch-aggregator", settings.telemetry.log_level)
        for line in unread(list(os.environ)):
            _LOG.warning(line)
        return uvloop.run(_serve(settings))
    except StartError as error:
        print(f"tokenbatch aggregator cannot start: {error}", file=sys.stderr)
        return _BAD_START


async def _check(settings: AggregatorSettings) -> int:
    """The exit code of the first check."""
    from aggregator.app import BROKERS, EXTENSIONS, authentication_of, file_limit_warning  # noqa: PLC0415 - what serving needs
    from aggregator.registry import KINDS  # noqa: PLC0415

    trials = [broker.check for broker in BROKERS] + [extension.check for extension in EXTENSIONS]
    topics = [extension.kafka(settings) for extension in EXTENSIONS]
    return await CHECKS[0](settings, KINDS, trials, authentication_of, file_limit_warning(settings), topics=topics)


async def _serve(settings: AggregatorSettings) -> int:
    """Work until SIGTERM or SIGINT, then drain; a failure of any part ends the process with its traceback."""
    from aggregator.app import Aggregator  # noqa: PLC0415

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    aggregator = Aggregator(settings)
    heap.freeze()
    with ungrouped(StartError):
        await aggregator.run(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
