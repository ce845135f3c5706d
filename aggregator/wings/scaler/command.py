"""The scaler's command: settings, parts, one task group; SIGTERM stops it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable

from aggregator.errors import ungrouped
from aggregator.settings.addresses import changes
from aggregator.settings.aggregator import KafkaSettings
from aggregator.wings.scaler.settings import ENV_PREFIX, ScalerSettings
from k8s.kube.endpoints import ServiceAddress, check_access
from k8s.pod import checks, logs, open_files
from k8s.pod.addresses import split_server
from k8s.pod.checks import PATIENCE_S, Findings
from k8s.pod.errors import StartError
from k8s.pod.help import add_settings
from k8s.pod.setting_names import unread
from k8s.pod.settings import as_text, load

PURPOSE = "turn lag and demand into the number of model servers, for Kubernetes' autoscaler and for KEDA"
_LOG = logging.getLogger(__name__)
_BAD_START = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(
        parser,
        ScalerSettings,
        ENV_PREFIX,
        check="try every file, port, name and broker that the settings name, and exit",
    )


def run(options: argparse.Namespace, _: object) -> int:
    """The exit code: 0 after SIGTERM, 2 if it could not start."""
    try:
        settings = load(ScalerSettings, ENV_PREFIX, options.config)
        if options.show_settings:
            sys.stdout.write(as_text(settings))
        if options.check:
            return asyncio.run(_check(settings))
        if options.show_settings:
            return 0
        logs.configure("tokenbatch-scaler", settings.telemetry.log_level)
        for line in unread(list(os.environ)):
            _LOG.warning(line)
        asyncio.run(_serve(settings))
    except StartError as error:
        sys.stderr.write(f"tokenbatch scaler cannot start: {error}\n")
        return _BAD_START
    return 0


async def _check(settings: ScalerSettings) -> int:
    """Print what was found; 0 if all of it works, else 1."""
    logging.disable()  # the libraries' lines, which come before the sentence that says what to do
    findings = Findings()
    if shortage := open_files.shortage(settings.most_connections, settings.ports):
        findings.warn(shortage)
    checks.environment(findings)
    checks.files(findings, settings, without=() if settings.kafka.enabled else ("kafka",))
    binds = {"keda.bind": settings.keda.bind, "api.bind": settings.api.bind}
    checks.ports(findings, binds, settings.telemetry.metrics_bind)
    work: list[Awaitable[None]] = []
    if settings.kafka.enabled:
        work.append(findings.within(_broker(findings, settings.kafka), f"kafka {settings.kafka.bootstrap_servers}"))
    for setting, addresses in (("aggregators.addresses", settings.aggregators.addresses), ("peers", settings.peers)):
        for place, address in enumerate(addresses):
            name = f"{setting}[{place}]"
            if changes(address):
                found = check_access(ServiceAddress.parse(address), name)
            else:
                found = checks.answers(name, *split_server(address))
            work.append(findings.within(found, f"{address} ({name})"))
    await asyncio.gather(*work)
    return findings.ended


async def _broker(findings: Findings, settings: KafkaSettings) -> None:
    from aggregator.sources.kafka.connection import reach  # noqa: PLC0415 - aiokafka, which no other command needs

    await reach(settings, PATIENCE_S)
    findings.good(f"kafka {settings.bootstrap_servers}: ok")


async def _serve(settings: ScalerSettings) -> None:
    from aggregator.wings.scaler.app import Scaler  # noqa: PLC0415 - 60 MB that no other command needs

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with ungrouped(StartError):
        await Scaler(settings).run(stop)
