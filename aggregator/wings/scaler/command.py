"""The scaler's command: settings, parts, one task group; SIGTERM stops it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from aggregator.errors import ungrouped
from aggregator.wings.scaler.settings import ENV_PREFIX, ScalerSettings
from k8s.pod import logs, open_files
from k8s.pod.errors import StartError
from k8s.pod.help import add_settings
from k8s.pod.settings import as_text, load

PURPOSE = "turn lag and demand into the number of model servers, for Kubernetes' autoscaler and for KEDA"
_BAD_START = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, ScalerSettings, ENV_PREFIX, check="validate the settings, print them, and exit")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0 after SIGTERM, 2 if it could not start."""
    try:
        settings = load(ScalerSettings, ENV_PREFIX, options.config)
        if options.check:
            sys.stdout.write(as_text(settings))
            if shortage := open_files.shortage(settings.most_connections, settings.ports):
                sys.stdout.write(f"warning: {shortage}\n")
            return 0
        logs.configure("tokenbatch-scaler", settings.telemetry.log_level)
        asyncio.run(_serve(settings))
    except StartError as error:
        sys.stderr.write(f"tokenbatch scaler cannot start: {error}\n")
        return _BAD_START
    return 0


async def _serve(settings: ScalerSettings) -> None:
    from aggregator.wings.scaler.app import Scaler  # noqa: PLC0415 - 60 MB that no other command needs

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with ungrouped(StartError):
        await Scaler(settings).run(stop)
