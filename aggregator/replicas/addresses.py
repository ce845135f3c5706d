"""Tell addresses that stand as they are from those that stand for changing endpoints, and follow the latter."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from aggregator.replicas import dns
from k8s import endpoints
from k8s.api import Kubernetes, connect

_SCHEMES = (endpoints.SCHEME, dns.SCHEME)


def changes(address: str) -> bool:
    """Whether it is `k8s://SERVICE.NAMESPACE:PORT` or `dns://NAME:PORT`."""
    return address.startswith(_SCHEMES)


def read(address: str) -> dns.DnsAddress | endpoints.ServiceAddress:
    """What an address that changes stands for. Raises StartError for one that cannot be read."""
    if address.startswith(dns.SCHEME):
        return dns.DnsAddress.parse(address)
    return endpoints.ServiceAddress.parse(address)


@dataclass(frozen=True, slots=True)
class Followed:
    """An address that stands for changing endpoints; `endpoints` opens the sets of `host:port` that it has in turn."""

    address: str
    endpoints: Callable[[], AsyncGenerator[frozenset[str]]]


class Follower:
    """Makes addresses Followed; all that need the cluster share one connection to it."""

    def __init__(self, cluster: Callable[[], Kubernetes] = connect, resolve: dns.Resolve = dns.look_up) -> None:
        self._cluster = cluster
        self._resolve = resolve
        self._kubernetes: Kubernetes | None = None

    def follow(self, address: str) -> Followed:
        """Raises StartError for an address that cannot be read, and for a Service where no cluster is known."""
        meant = read(address)
        if isinstance(meant, dns.DnsAddress):
            return Followed(address, lambda: dns.resolved(meant, self._resolve))
        if self._kubernetes is None:
            self._kubernetes = self._cluster()
        kubernetes = self._kubernetes
        return Followed(address, lambda: endpoints.endpoints(kubernetes, meant))

    async def close(self) -> None:
        """Let go of the connection."""
        if self._kubernetes is not None:
            await self._kubernetes.close()
