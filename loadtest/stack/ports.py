"""Choose TCP ports on this machine: the usual one when it is free, else any."""

from __future__ import annotations

import random
import socket

from loadtest.stack.errors import StackError

# Below those that the kernel lends to connections: one of these could take a port before its server does.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on now, and that nobody else is given while this process lives.

    Raises StackError if there are too few.
    """
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        try:
            held = _bound(port, shared=False)
        except OSError:
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # from now on a server may listen there beside it
        held.detach()  # and so it stays bound until this process ends
        ports.append(port)
        if len(ports) == count:
            return ports
    raise StackError(f"no {count} ports are free between {_PORTS.start} and {_PORTS.stop}")


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of every interface."""
    try:
        _bound(port).close()
    except OSError:
        return False
    return True


def choose_port(wanted: int | None, usual: int, option: str) -> int:
    """The port that `option` requested, else the usual one, else, when that is busy, any.

    Raises StackError when the one requested is busy.
    """
    if wanted is None:
        return usual if is_free(usual) else free_ports(1)[0]
    if not is_free(wanted):
        raise StackError(f"port {wanted} is busy: give {option} another, or leave it out and a free one is taken")
    return wanted


def _bound(port: int, *, shared: bool = True) -> socket.socket:
    """A socket on every interface.

    Where it is `shared` it ignores, like servers, connections that linger and such sockets as do not listen.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)
        bound.bind(("0.0.0.0", port))  # noqa: S104 - bound to find out, and never listened on
    except OSError:
        bound.close()
        raise
    return bound
