"""How many files a process may open, and how many of them the connections to its ports may take."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress

_LOG = logging.getLogger(__name__)

_KEPT = 512
"""Kept for the live page's viewers (256), brokers, model servers and libraries; half of a limit below 1,024."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one: a login's, and a container's under containerd 2, is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # where the hard one says more than the kernel allows, as on macOS
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int | None:
    """How many files this process may open; None: as many as it likes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def connections(wanted: int, ports: int = 1) -> int:
    """The connections that each of `ports` ports takes: `wanted`, or fewer, so that none takes what another needs."""
    most = limit()
    return wanted if most is None else max(1, min(wanted, (most - min(_KEPT, most // 2)) // max(1, ports)))


def granted(wanted: int, ports: int = 1) -> int:
    """The same, and a line in the log where it is fewer."""
    if reason := shortage(wanted, ports):
        _LOG.warning("the limit of open files lowers the bounds of connections", extra={"reason": reason})
    return connections(wanted, ports)


def shortage(wanted: int, ports: int = 1) -> str:
    """The consequence of the limit of open files, in a sentence without its stop; empty where it costs nothing."""
    fewer = connections(wanted, ports)
    if fewer == wanted:
        return ""
    return (
        f"At most {limit()} files may be open, so each port takes {fewer} connections, not {wanted}:"
        f" raise the hard limit (ulimit -Hn, LimitNOFILE) to {ports * wanted + _KEPT}"
    )
