"""Choose TCP ports on this machine: the usual one when it is free, else any."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(_bound(0)) for _ in range(count)]
        return [bound.getsockname()[1] for bound in sockets]


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of every interface."""
    try:
        _bound(port).close()
    except OSError:
        return False
    return True


def preferred_port(port: int) -> int:
    """`port` if it is free, else any that is."""
    return port if is_free(port) else free_ports(1)[0]


def _bound(port: int) -> socket.socket:
    """A socket on every interface, as a server would hold it; like servers, it ignores connections that linger."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("0.0.0.0", port))  # noqa: S104 - bound to find out, and never listened on
    except OSError:
        bound.close()
        raise
    return bound
