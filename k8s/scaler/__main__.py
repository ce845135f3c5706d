"""Run the scaler: settings, parts, one task group; SIGTERM stops it."""

from __future__ import annotations

if __name__ == "__main__":
    from k8s.process.begin import begin

    begin()

import asyncio
import signal
import sys
from collections.abc import Sequence

from aggregator.errors import ungrouped
from k8s.process import logs, open_files
from k8s.process.errors import StartError
from k8s.process.help import parser_of
from k8s.process.settings import as_text, load
from k8s.scaler.app import Scaler
from k8s.scaler.settings import ENV_PREFIX, ScalerSettings

_BAD_START = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after SIGTERM, 2 if it could not start."""
    options = parser_of(
        "k8s.scaler",
        "Turn lag and demand into the number of model servers, for Kubernetes' autoscaler and for KEDA.",
        ScalerSettings,
        ENV_PREFIX,
        check="validate the settings, print them, and exit",
    ).parse_args(arguments)
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
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with ungrouped(StartError):
        await Scaler(settings).run(stop)


if __name__ == "__main__":
    sys.exit(main())
