"""Addresses whose endpoints change: of a Service in Kubernetes, or of a name in DNS."""

from __future__ import annotations

import re
from dataclasses import dataclass

from k8s.kube import endpoints
from k8s.pod.addresses import split_server
from k8s.pod.errors import StartError

_DNS = "dns://"
_SCHEMES = (endpoints.SCHEME, _DNS)
_DNS_ADDRESS = re.compile(r"dns://[A-Za-z0-9._-]+:\d+")


@dataclass(frozen=True, slots=True)
class DnsAddress:
    """Every address of a name, at one port."""

    name: str
    port: int


def changes(address: str) -> bool:
    """Whether it is `k8s://SERVICE.NAMESPACE:PORT` or `dns://NAME:PORT`."""
    return address.startswith(_SCHEMES)


def check_address(address: str) -> None:
    """Raises ValueError unless it is such an address, or host:port."""
    try:
        if changes(address):
            parse(address)
        else:
            split_server(address)
    except StartError as error:
        raise ValueError(str(error)) from None


def parse(address: str) -> DnsAddress | endpoints.ServiceAddress:
    """Parse an address whose endpoints change. Raises StartError if it is invalid."""
    if not address.startswith(_DNS):
        return endpoints.ServiceAddress.parse(address)
    if not _DNS_ADDRESS.fullmatch(address):
        raise StartError(f"{address!r} is not dns://NAME:PORT")
    return DnsAddress(*split_server(address.removeprefix(_DNS)))
