"""An engine that generates and embeds, as the model server drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from modelserver.engines.engine import Task
from modelserver.wings.generation.generator import Generator

EMBED_AND_GENERATE = frozenset((Task.EMBED, Task.GENERATE))
"""The two tasks that one model may have at once."""


@runtime_checkable
class Embeds(Protocol):
    """An engine that takes embeddings beside its other work."""

    def embed(self, name: str, token_ids: Sequence[int]) -> None:
        """Compute the vector of `token_ids`, all of them valid, before prompts that wait."""
        ...


class MixedGenerator(Generator, Embeds, Protocol):
    """Both tasks of one loaded model. `running` counts generations alone, and `load` the two apart."""
