"""The models in service, as a source with callers sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Protocol

from aggregator.model_server import ServerDescription
from aggregator.scheduler.work_item import Task
from aggregator.tokenizers.tokenizer import Counting, GenerationTokenizer


class ServedRevision(Protocol):
    """One revision of a model for one task."""

    @property
    def description(self) -> ServerDescription: ...

    @property
    def servers(self) -> Sized: ...

    @property
    def counting(self) -> Counting:
        """Counts tokens off the event loop."""
        ...

    @property
    def generation_tokenizer(self) -> GenerationTokenizer: ...


class ServedTask(Protocol):
    """One task of a configured model."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    @property
    def revisions(self) -> Mapping[str, ServedRevision]: ...

    def choose(self, revision: str, request_id: str) -> ServedRevision | None:
        """The revision to serve a request; None if no server has one. Raises UnknownModel."""
        ...


class ServedModels(Protocol):
    """The configured models."""

    @property
    def tasks(self) -> Sequence[ServedTask]:
        """Every task of every model."""
        ...

    def find(self, name: str, task: Task = Task.EMBED) -> ServedTask:
        """The task of the model of that name or alias. Raises UnknownModel."""
        ...

    def dimensions(self, name: str) -> int:
        """The dimensions of the model's longest vectors, by name or alias; 0 if it has no server."""
        ...

    def next_due_s(self, now_s: float) -> float:
        """When the first replica takes its next batch (monotonic seconds)."""
        ...
