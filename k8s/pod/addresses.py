"""Addresses in settings: each is split here, and an invalid one is refused with a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Annotated

from pydantic import AfterValidator

from k8s.pod.errors import StartError

_PORT = re.compile(r"[0-9]{1,5}")
_ENDS_WITH_PORT = re.compile(r":[^\]:]*$")
_HOST = re.compile(r"[^\s:/@,\[\]]*")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `:port` or `[v6]:port`; raises StartError for anything else."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not _PORT.fullmatch(port) or int(port) >= 2**16 or not (_is_name(host) or _is_v6(host)):
        shown = repr(address) if "@" not in address else "an address with a login"  # part of it may be a password
        raise StartError(f"{shown} is not host:port or [IPv6]:port")
    return host, int(port)


def split_server(address: str) -> tuple[str, int]:
    """The same of an address to connect to, which needs a host, and a port other than 0. Raises StartError."""
    host, port = split_address(address)
    if not host or not port:
        raise StartError(f"{address!r} is not host:port or [IPv6]:port of a server")
    return host, port


def split_servers(addresses: str) -> list[tuple[str, int]]:
    """The same of each of some, separated by commas. Raises StartError, also for none."""
    split = [split_server(each.strip()) for each in addresses.split(",") if each.strip()]
    if not split:
        raise StartError("there is no address: give host:port, several separated by commas")
    return split


def check_url(name: str, url: str) -> tuple[str, int]:
    """Host and port of a collector. Raises StartError, which names the variable `name`, for what cannot be one."""
    _, _, rest = url.rpartition("://")
    address = rest.partition("/")[0]
    try:
        return split_server(address if _ENDS_WITH_PORT.search(address) else f"{address}:4317")
    except StartError:
        raise StartError(f"{name} is not an address of a collector: give http://host:4317") from None


def _is_name(host: str) -> bool:
    """Whether a resolver takes it: one raises no OSError for a part that is empty, or longer than 63 characters."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(_HOST.fullmatch(host))


def _is_v6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def _checked(split: Callable[[str], object]) -> AfterValidator:
    def check(address: str) -> str:
        try:
            split(address)
        except StartError as error:
            raise ValueError(str(error)) from None
        return address

    return AfterValidator(check)


Bind = Annotated[str, _checked(split_address)]
OptionalBind = Annotated[str, _checked(lambda address: address and split_address(address))]
Servers = Annotated[str, _checked(split_servers)]
"""Separated by commas."""
