"""Run the scaler: settings, parts, one task group; SIGTERM stops it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aggregator.errors import StartError, ungrouped
from aggregator.observability import logs
from aggregator.settings.help import help_text
from aggregator.settings.load import as_text, load
from k8s.scaler.app import Scaler
from k8s.scaler.settings import ENV_PREFIX, ScalerSettings

_BAD_START = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after SIGTERM, 2 if it could not start."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(ScalerSettings, ENV_PREFIX, options.config)
        if options.check:
            sys.stdout.write(as_text(settings))
            return 0
        logs.configure("tokenbatch-scaler", settings.telemetry.log_level)
        asyncio.run(_serve(settings))
    except StartError as error:
        sys.stderr.write(f"tokenbatch scaler cannot start: {error}\n")
        return _BAD_START
    return 0


async def _serve(settings: ScalerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with ungrouped(StartError):
        await Scaler(settings).run(stop)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m k8s.scaler",
        description="Turn lag and demand into the number of model servers, for Kubernetes' autoscaler and for KEDA.",
        epilog=help_text(ScalerSettings, ENV_PREFIX),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as YAML; the environment wins over it")
    parser.add_argument("--check", action="store_true", help="validate the settings, print them, and exit")
    return parser


if __name__ == "__main__":
    sys.exit(main())
