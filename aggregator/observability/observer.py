"""A hook for each batch and answer as it happens."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.errors import Code
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Task


class Observer:
    """Follows batches and answers, on the event loop. This one ignores them; `wings/page` draws them."""

    def batch_done(self, batch: Batch, task: Task, report: StepReport, now_s: float) -> None:
        """A batch was computed. A batch of prompts is computed once each has its first token."""

    def batch_failed(self, batch: Batch, task: Task, code: Code, now_s: float) -> None:
        """A batch failed as a whole."""

    def answered(self, source: str, latencies_s: Sequence[float], queries: int) -> None:
        """Requests of a source were answered: `latencies_s` of each since its intake, `queries` of all together."""
