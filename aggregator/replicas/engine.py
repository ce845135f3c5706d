"""What the pipeline asks of the world, in the order of the data: records, token counts, engines, replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aggregator.admission.tokenizers.tokenizer import Tokenizer
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from protos.modelserver.v1.curve import Curve


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """What a model server says of itself (`Describe`), checked."""

    address: str
    instance_id: str
    model: str
    model_revision: str
    tokenizer_fingerprint: str
    dimensions: int
    matryoshka_dimensions: frozenset[int]
    max_input_tokens: int
    step_token_capacity: int
    step_query_capacity: int
    vocabulary_size: int
    normalizes: bool
    query_prompt: str
    document_prompt: str
    curve: Curve | None


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """One batch as the wire carries it: packed int32 ids and lengths, little endian."""

    batch_id: str
    token_ids: bytes
    lengths: bytes
    query_count: int
    token_count: int
    attempt: int
    isolate: bool
    max_step_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one batch came back with; `matrix` is float32 [queries, dimensions], pooled, not normalised.

    `errors` holds (position, code, message) of the queries that failed; `report` tells of the engine step.
    """

    matrix: npt.NDArray[np.float32]
    errors: Sequence[tuple[int, int, str]]
    report: StepReport


class Engine(Protocol):
    """One model server."""

    @property
    def description(self) -> ServerDescription:
        """What it said of itself when it was reached."""
        ...

    async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
        """Run one batch.

        Raises ModelServerBusy (never started), ModelServerLost, EngineFailed; an answer of the wrong shape or
        with values that are not finite is ModelServerLost too.
        """
        ...


class Pool(Protocol):
    """The model servers: who is there, announced to the pipeline as they come and go."""

    async def run(self, members: PoolMembers) -> None:
        """Keep connections to every configured server, announce and withdraw them, until cancelled."""
        ...

    def suspect(self, engine: Engine) -> None:
        """A batch failed there: withdraw it now, probe it, and announce it again when it answers well."""
        ...


class PoolMembers(Protocol):
    """The pipeline's side of the pool."""

    def join(self, engine: Engine, tokenizer: Tokenizer) -> None:
        """A server is ready for batches."""
        ...

    def leave(self, engine: Engine) -> None:
        """A server is gone, or suspect; batches out to it end by themselves."""
        ...


def outgoing(batch: Batch) -> OutgoingBatch:
    """The batch as the wire carries it: ids and lengths end to end."""
    return OutgoingBatch(
        batch_id=batch.batch_id,
        token_ids=b"".join([entry.token_ids for entry in batch.entries]),
        lengths=np.array([entry.token_count for entry in batch.entries], dtype="<i4").tobytes(),
        query_count=len(batch.entries),
        token_count=batch.token_count,
        attempt=batch.attempt,
        isolate=batch.isolated,
        max_step_tokens=max(batch.token_budget, batch.token_count),
    )
