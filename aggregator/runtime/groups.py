"""Take an error out of the group that a TaskGroup put it in."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def ungrouped(*kinds: type[Exception]) -> Generator[None]:
    """Errors of these kinds come as the first of them by itself; a group that holds others too stays one.

    A `raise` inside `except*` does not do: before Python 3.11.4, so in Debian 12's, it is put into a group again.
    """
    try:
        yield
    except ExceptionGroup as group:
        _, others = group.split(kinds)
        if others is not None:
            raise
        raise _first(group) from None


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
