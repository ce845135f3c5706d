"""Follow the addresses of a DNS name by resolving it repeatedly; the last answer stays valid during an outage."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from aggregator.errors import StartError

_LOG = logging.getLogger(__name__)
SCHEME = "dns://"
EVERY_S = 2.0
"""The interval of resolving: a new server gets its first batch within 5 s."""
_ADDRESS = re.compile(r"dns://(?P<name>[A-Za-z0-9._-]+):(?P<port>\d+)")

Resolve = Callable[[str, int], Awaitable[frozenset[str]]]
"""The `host:port` of every address that a name has now. Raises OSError."""


@dataclass(frozen=True, slots=True)
class DnsAddress:
    """Every address of a name, at one port."""

    name: str
    port: int

    @staticmethod
    def parse(address: str) -> DnsAddress:
        """Read dns://NAME:PORT. Raises StartError."""
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise StartError(f"{address!r} is not dns://NAME:PORT")
        return DnsAddress(match["name"], int(match["port"]))


async def look_up(name: str, port: int) -> frozenset[str]:
    """Ask the system's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return frozenset(
        f"[{place[0]}]:{port}" if family == socket.AF_INET6 else f"{place[0]}:{port}" for family, *_, place in found
    )


async def resolved(address: DnsAddress, resolve: Resolve = look_up) -> AsyncGenerator[frozenset[str]]:
    """`host:port` of every address of the name: the whole set at each change; never ends.

    A failed resolution changes nothing: the last answer stays valid.
    """
    known: frozenset[str] | None = None
    failing = False
    while True:
        try:
            found = await resolve(address.name, address.port)
        except OSError as error:
            if not failing:
                _LOG.warning("a name cannot be resolved", extra={"name_asked": address.name, "error": str(error)})
            failing = True
        else:
            failing = False
            if found != known:
                known = found
                yield found
        await asyncio.sleep(EVERY_S)
