"""What the readers of HTTP bodies need beside a body."""

from __future__ import annotations

from typing_extensions import override

from aggregator.observability.metrics import Metrics
from aggregator.scheduler.work_item import Task
from aggregator.sources.calls.load import Limits, Load, Room
from aggregator.sources.http.embeddings import Revisions
from k8s.pod.metrics_buffer import MetricsBuffer


class AnyRevision(Revisions):
    """Every tokenizer is that of all revisions."""

    def __init__(self) -> None:
        """Needs no models."""

    @override
    def of_tokenizer(self, tokenizer: str, name: str, task: Task) -> str:
        del tokenizer, name, task
        return ""


def room() -> Room:
    """What a call holds, where there is room for all."""
    return Load(Limits(), Metrics(MetricsBuffer())).enter(())
