"""Choose TCP ports on this machine: the usual one when it is free, else any."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from loadtest.stack.errors import StackError


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


def choose_port(wanted: int | None, usual: int, option: str) -> int:
    """The port that `option` asked for, else the usual one, else, when that is busy, any.

    Raises StackError when the one asked for is busy.
    """
    if wanted is None:
        return usual if is_free(usual) else free_ports(1)[0]
    if not is_free(wanted):
        raise StackError(f"port {wanted} is busy: give {option} another, or leave it out and a free one is taken")
    return wanted


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
