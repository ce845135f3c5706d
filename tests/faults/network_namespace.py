"""A network namespace with links to this machine that can be cut: packets vanish, and nobody is told.

As a module it is an aggregator in the namespace that the environment names: `python -m tests.faults.network_namespace`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from aggregator.__main__ import main

NAMESPACE = "FAULTS_NAMESPACE"
_FOLDER = Path("/run/netns")
_NEW_NETWORK = 0x40000000


class CannotIsolate(Exception):
    """This machine, or this user, has no network namespaces."""


class Link:
    """One link; `address` is this machine's on it."""

    def __init__(self, namespace: str, number: int) -> None:
        subnet = f"10.{211 + number}.{os.getpid() % 256}"
        self.address = f"{subnet}.1"
        self._near, far = f"near{number}-{os.getpid()}", f"far{number}"
        _ip("link", "add", self._near, "type", "veth", "peer", "name", far, "netns", namespace)
        _ip("address", "add", f"{self.address}/30", "dev", self._near)
        _ip("-n", namespace, "address", "add", f"{subnet}.2/30", "dev", far)
        _ip("-n", namespace, "link", "set", far, "up")
        self.mend()

    def cut(self) -> None:
        """Lose every packet, both ways."""
        _ip("link", "set", self._near, "down")

    def mend(self) -> None:
        _ip("link", "set", self._near, "up")


@contextmanager
def namespace(links: int) -> Generator[tuple[dict[str, str], list[Link]]]:
    """A namespace: the environment of a process to be in it, and its links. Raises CannotIsolate."""
    name = f"faults-{os.getpid()}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield {NAMESPACE: name}, [Link(name, number) for number in range(links)]
    finally:
        _ip("netns", "delete", name)  # and with it every link's far end, and so the link


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotIsolate("no command ip: install the system package iproute2") from None
    if done.returncode:
        raise CannotIsolate(f"ip {' '.join(words)}: {done.stderr.strip()}")


def enter(name: str) -> None:
    """Move this thread, and all that it starts, into a namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (_FOLDER / name).open() as file:
        if libc.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


if __name__ == "__main__":
    enter(os.environ[NAMESPACE])
    sys.exit(main())
