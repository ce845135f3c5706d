"""Tell a cancellation from the errors that hide it."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether the running task was asked to end.

    In Python 3.11 the errors of a TaskGroup, and the end of a gRPC connection, look the same or hide it.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
