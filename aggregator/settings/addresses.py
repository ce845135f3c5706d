"""Addresses whose endpoints change: of a Service in Kubernetes, or of a name in DNS."""

from __future__ import annotations

import re
from dataclasses import dataclass

from k8s import endpoints
from k8s.process.errors import StartError

_DNS = "dns://"
_SCHEMES = (endpoints.SCHEME, _DNS)
_DNS_ADDRESS = re.compile(r"dns://(?P<name>[A-Za-z0-9._-]+):(?P<port>\d+)")


@dataclass(frozen=True, slots=True)
class DnsAddress:
    """Every address of a name, at one port."""

    name: str
    port: int


def changes(address: str) -> bool:
    """Whether it is `k8s://SERVICE.NAMESPACE:PORT` or `dns://NAME:PORT`."""
    return address.startswith(_SCHEMES)


def parse(address: str) -> DnsAddress | endpoints.ServiceAddress:
    """Parse an address whose endpoints change. Raises StartError if it is invalid."""
    if not address.startswith(_DNS):
        return endpoints.ServiceAddress.parse(address)
    match = _DNS_ADDRESS.fullmatch(address)
    if match is None:
        raise StartError(f"{address!r} is not dns://NAME:PORT")
    return DnsAddress(match["name"], int(match["port"]))
