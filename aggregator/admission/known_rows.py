"""The hook for rows that need no computation."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aggregator.request.request import Request
from aggregator.request.vector import Float32Matrix, Vector
from aggregator.scheduler.work_item import WorkItem

Input = tuple[int, bytes, int]
"""The index of an input in its request, its sequence and the number of its tokens."""


class KnownRows:
    """What a model revision need not compute again: nothing here. The wing `cache` keeps rows."""

    def find(
        self,
        request: Request,  # noqa: ARG002 - a wing looks at its tenant
        inputs: Sequence[Input],
    ) -> tuple[Sequence[Input], Sequence[tuple[int, Vector]]]:
        """The inputs that are to be computed, and the vectors of the others, each with the index of its input.

        Its vectors are readable from the next `seal` on.
        """
        return inputs, ()

    def seal(self, now_s: float) -> None:
        """End an admission at this time (monotonic seconds): the vectors that it found are read from now on."""

    def keep(self, items: Sequence[WorkItem], failed: Collection[int], matrix: Float32Matrix) -> None:
        """Note what the engine gave: the rows of all items, but for those at the places that `failed`, as zeros."""
