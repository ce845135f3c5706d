"""Why a part of the stack could not be started."""

from __future__ import annotations


class StackError(Exception):
    """A part could not be started, or ended on its own; the message says what to do."""
