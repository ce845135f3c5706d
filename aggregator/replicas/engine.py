"""What the pipeline asks of the world, in the order of the data: records, token counts, engines, replies."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aggregator.admission.tokenizers.tokenizer import Tokenizer
from aggregator.errors import BatchFailed, Code
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from protos.generation.v1.generation_pb2 import TokenLogprobs
from protos.modelserver.v1.curve import Curve
from protos.modelserver.v1.modelserver_pb2 import Sampling


@dataclass(frozen=True, slots=True)
class Generating:
    """What a step of a server that generates costs, in seconds, and what it has room for.

    `fixed_s`, and `per_sequence_s` for each sequence that gains a token, and `per_token_s` for each token of a prompt.
    """

    fixed_s: float
    per_sequence_s: float
    per_token_s: float
    kv_tokens: int
    max_sequences: int


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """What a model server says of itself (`Describe`), checked; one that embeds is not `generating`."""

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
    generating: Generating | None = None


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
class GeneratingLoad:
    """How a server stands that generates, for all who use it."""

    free_kv_tokens: int
    running: int
    waiting_tokens: int
    step_duration_s: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one batch came back with; `matrix` is float32 [queries, dimensions], pooled, not normalised.

    `errors` holds (position, code, message) of the queries that failed; `report` tells of the engine step.
    """

    matrix: npt.NDArray[np.float32]
    errors: Tokens[tuple[int, int, str]]
    report: StepReport


class Sequence(Protocol):
    """One text that a server is asked for, as it hears of it; all is called on the event loop."""

    @property
    def token_ids(self) -> bytes:
        """What to go on from, int32 little endian."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How to draw."""
        ...

    def extend(self, token_ids: Tokens[int], logprobs: Tokens[TokenLogprobs], stripped: int) -> None:
        """New tokens came, the last `stripped` of them no text."""
        ...

    def end(self, *, cut: bool) -> None:
        """Those were its last; for want of room if it was `cut`."""
        ...

    def fail(self, code: Code, message: str) -> None:
        """The server refused it, or its engine failed beneath it."""
        ...

    def lost(self, error: BatchFailed) -> None:
        """The server is gone."""
        ...


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


class TextEngine(Engine, Protocol):
    """One model server that generates."""

    def generate(self, sequence: Sequence) -> None:
        """Start a text; it hears of all that becomes of it, and of its end once."""
        ...

    def abort(self, sequence: Sequence) -> None:
        """Nobody wants it any more: it hears nothing more."""
        ...

    @property
    def load(self) -> GeneratingLoad | None:
        """How it stood after its last step; None before any."""
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
        token_ids=b"".join([item.token_ids for item in batch.items]),
        lengths=np.array([item.token_count for item in batch.items], dtype="<i4").tobytes(),
        query_count=len(batch.items),
        token_count=batch.token_count,
        attempt=batch.attempt,
        isolate=batch.isolated,
        max_step_tokens=max(batch.token_budget, batch.token_count),
    )
