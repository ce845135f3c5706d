"""What `--check` of every process tries: the files, folders, ports and names that its settings name.

A finding is a line with the setting and the remedy. Everything is tried at once, within `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from pydantic import BaseModel

from k8s.pod.addresses import split_address
from k8s.pod.errors import StartError
from k8s.pod.files import FOLDERS, paths, readable, reason_of, writable
from k8s.pod.setting_names import unread
from k8s.pod.telemetry import collectors

PATIENCE_S = 5.0
_PROBE_S = 1.0  # of a collector
_FIRST_PROCESS, _SERVERS = Path("/proc/1/cmdline"), {b"aggregator", b"modelserver"}


class Findings:
    """The lines of one `--check`, printed as they are found."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def good(self, line: str) -> None:
        print(line)

    def warn(self, line: str) -> None:
        print(f"warning: {line}")

    def problem(self, line: str) -> None:
        self._problems.append(line)

    @property
    def ended(self) -> int:
        """The exit code; prints the problems and the verdict."""
        for line in dict.fromkeys(self._problems):
            print(f"problem: {line}")
        count = len(dict.fromkeys(self._problems))
        print(f"{count} problem{'s' if count > 1 else ''}" if count else "ok")
        return 1 if count else 0

    async def within(self, work: Awaitable[None], what: str) -> None:
        """Await work; its StartError, or the end of the patience, is a problem."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await work
        except StartError as error:
            self.problem(str(error))
        except TimeoutError:
            self.problem(f"{what} did not answer within {PATIENCE_S:g} s")


def environment(findings: Findings) -> None:
    """Variables that look like settings, and collectors of OpenTelemetry."""
    for line in unread(list(os.environ)):
        findings.warn(line)
    try:
        named = collectors()
    except StartError as error:
        findings.problem(str(error))
        return
    for variable, (host, port) in named.items():
        try:
            socket.create_connection((host, port), _PROBE_S).close()
        except OSError as error:
            findings.warn(f"{variable}: nothing answers at {host}:{port} ({reason_of(error)})")


def files(findings: Findings, settings: BaseModel, without: Iterable[str] = ()) -> None:
    """Every file that the settings name can be read, every folder written; but for groups `without` use."""
    for setting, path in paths(settings):
        if not setting.startswith(tuple(without)):
            try:
                (writable if setting.endswith(FOLDERS) else readable)(setting, path)
            except StartError as error:
                findings.problem(str(error))


def ports(findings: Findings, binds: Mapping[str, str], metrics: str) -> None:
    """Each address can be bound, beside the others; `binds` by setting, empty ones are left out."""
    taken = dict(_taken({**binds, "telemetry.metrics_bind": metrics}))
    if taken and _is_beside_the_server():
        findings.warn(f"the process of this container has the ports of {', '.join(taken)}")
        return
    for setting, reason in taken.items():
        findings.problem(f"{setting}: {reason}")


async def resolves(setting: str, host: str, port: int) -> None:
    """Raises StartError for a name that is not known."""
    try:
        await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StartError(f"{setting}: {host} cannot be resolved ({reason_of(error)}): is the name right?") from None


async def answers(setting: str, host: str, port: int) -> None:
    """Raises StartError where nothing listens."""
    await resolves(setting, host, port)
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise StartError(f"nothing answers at {host}:{port} ({setting}): {reason_of(error)}") from None
    writer.close()


def _taken(binds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The settings whose address cannot be bound, beside each other, and why."""
    with ExitStack() as bound:
        by_port: dict[int, str] = {}
        for setting, bind in binds.items():
            if not bind:
                continue
            host, port = split_address(bind)
            try:
                family, kind, _, _, address = socket.getaddrinfo(
                    host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                opened = bound.enter_context(socket.socket(family, kind))
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                opened.bind(address)
                opened.listen()
            except OSError as error:
                other = by_port.get(port)
                remedy = f"{other} has this port too" if other else "is another program using the port?"
                yield setting, f"{bind} cannot be bound ({reason_of(error)}): {remedy}"
            else:
                if port:
                    by_port[port] = setting


def _is_beside_the_server() -> bool:
    """Whether the first process of this container, or machine, is one of ours: a check in its pod finds its ports."""
    try:
        return bool(_SERVERS & set(_FIRST_PROCESS.read_bytes().split(b"\0")))
    except OSError:
        return False
