"""Run many simulations at once, in processes of their own, one for each core."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Self, TypeVar

T = TypeVar("T")


class Pool:
    """Cores to simulate on; use it as a context. What comes back does not depend on how many there are."""

    def __init__(self, processes: int | None = None, noted: Callable[[int, int], None] | None = None) -> None:
        """`processes`: one for each core when absent; 0 for none, the work is then done in this one.

        `noted` receives the number of finished and of requested pieces of work.
        """
        self._noted = noted or (lambda _done, _asked: None)
        self._done = self._asked = 0
        self._executor: ProcessPoolExecutor | None = None
        if processes is None:
            processes = len(os.sched_getaffinity(0))
        if processes:
            # A fresh interpreter each: this one may have threads, which a copy of it would lack.
            context = get_context("spawn")
            self._executor = ProcessPoolExecutor(processes, context, _leave_interrupts_to_the_parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(self, work: Callable[..., T], *columns: Iterable[object]) -> list[T]:
        """`work` of each row, in the order of the rows; it must be a function that other processes can import."""
        rows = list(zip(*columns, strict=True))
        self._asked += len(rows)
        if self._executor is None:
            return [self._note(work(*row)) for row in rows]
        futures = [self._executor.submit(work, *row) for row in rows]
        for future in as_completed(futures):
            self._note(future.result())
        return [future.result() for future in futures]

    def _note(self, result: T) -> T:
        self._done += 1
        self._noted(self._done, self._asked)
        return result


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
