"""Follow addresses whose endpoints change: of a Service in Kubernetes, or of a name in DNS."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING

from typing_extensions import override

from aggregator.replicas.targets import Target
from aggregator.settings.addresses import DnsAddress, changes, parse
from k8s.kube import endpoints
from k8s.kube.client import connect

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes

_LOG = logging.getLogger(__name__)

Endpoints = Callable[[], AsyncGenerator[frozenset[str]]]
"""Opens the stream of an address's endpoints: a set of `host:port` at each change."""

EVERY_S = 2.0
"""The interval of resolving: a new server gets its first batch within 5 s."""

Resolve = Callable[[str, int], Awaitable[frozenset[str]]]
"""The `host:port` of every address that a name has now. Raises OSError."""


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


class Discovery(AsyncIterable[frozenset[Target]]):
    """All targets: the whole set at each change."""

    def __init__(
        self,
        targets: Iterable[Target],
        cluster: Callable[[], Kubernetes] = connect,
        resolve: Resolve = look_up,
    ) -> None:
        """`targets` as in the settings; Services share one connection to the Kubernetes API, which `cluster` opens.

        Raises StartError for an address that is invalid, and for a Service outside of a cluster.
        """
        targets = tuple(targets)
        self._kubernetes: Kubernetes | None = None
        self._fixed = frozenset(target for target in targets if not changes(target.address))
        self._changing = [
            (target, self._endpoints(target.address, cluster, resolve)) for target in targets if changes(target.address)
        ]

    def _endpoints(self, address: str, cluster: Callable[[], Kubernetes], resolve: Resolve) -> Endpoints:
        parsed = parse(address)
        if isinstance(parsed, DnsAddress):
            return lambda: resolved(parsed, resolve)
        kubernetes = self._kubernetes = self._kubernetes or cluster()
        return lambda: endpoints.endpoints(kubernetes, parsed)

    @override
    async def __aiter__(self) -> AsyncGenerator[frozenset[Target]]:
        """Follow every address that changes, until closed."""
        if not self._changing:
            yield self._fixed
            return
        found: dict[Target, frozenset[Target]] = {}
        changed = asyncio.Event()

        async def follow(target: Target, opened: Endpoints) -> None:
            async with aclosing(opened()) as answers:
                async for hosts in answers:
                    found[target] = frozenset(Target(host, target.model) for host in hosts)
                    changed.set()

        following = [
            asyncio.create_task(follow(target, opened), name=f"follow {target.address}")
            for target, opened in self._changing
        ]
        for task in following:
            task.add_done_callback(lambda _: changed.set())
        try:
            while True:
                yield self._fixed.union(*found.values())
                await changed.wait()
                changed.clear()
                for task in following:
                    if task.done():
                        task.result()  # raises: it ends only with an unexpected error
        finally:
            for task in following:
                task.cancel()
            if self._kubernetes is not None:
                await self._kubernetes.close()
