"""The interfaces to model servers: what a server is, what is sent to it and comes back, and the pool of servers."""

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
    """What a step costs on a server that generates, in seconds, and the room it has.

    A step takes `fixed_s`, plus `per_sequence_s` for each sequence that gains a token, plus `per_token_s` for each
    prompt token.
    """

    fixed_s: float
    per_sequence_s: float
    per_token_s: float
    kv_tokens: int
    max_sequences: int


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """A model server's checked description (`Describe`); `generating` is None if it embeds."""

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
    """One batch in its wire format: ids and lengths, packed int32, little endian."""

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
    """The load of a server that generates, from all aggregators."""

    free_kv_tokens: int
    running: int
    waiting_tokens: int
    step_duration_s: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one batch; `matrix` is float32 [queries, dimensions], pooled, not normalised.

    `errors` holds (position, code, message) of the queries that failed; `report` describes the engine step.
    """

    matrix: npt.NDArray[np.float32]
    errors: Tokens[tuple[int, int, str]]
    report: StepReport


class Sequence(Protocol):
    """One text that a server generates; all methods are called on the event loop."""

    @property
    def token_ids(self) -> bytes:
        """The tokens to continue from, int32 little endian."""
        ...

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters."""
        ...

    def extend(self, token_ids: Tokens[int], logprobs: Tokens[TokenLogprobs], stripped: int) -> None:
        """New tokens arrived; the last `stripped` of them are not text."""
        ...

    def end(self, *, cut: bool) -> None:
        """The sequence is complete; `cut`: because the server has no more room for it."""
        ...

    def fail(self, code: Code, message: str) -> None:
        """The server refused it, or its engine failed."""
        ...

    def lost(self, error: BatchFailed) -> None:
        """The server is gone."""
        ...


class Engine(Protocol):
    """One model server."""

    @property
    def description(self) -> ServerDescription:
        """Its description when it was reached."""
        ...

    async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
        """Run one batch.

        Raises ModelServerBusy (never started), ModelServerLost or EngineFailed. A response of the wrong shape, or with
        values that are not finite, is ModelServerLost too.
        """
        ...


class TextEngine(Engine, Protocol):
    """One model server that generates."""

    def generate(self, sequence: Sequence) -> None:
        """Start a sequence; it receives its tokens, and its end once."""
        ...

    def abort(self, sequence: Sequence) -> None:
        """Stop a sequence; it receives nothing more."""
        ...

    @property
    def load(self) -> GeneratingLoad | None:
        """Its load after its last step; None before any."""
        ...


class Pool(Protocol):
    """The model servers; the pipeline is told as they join and leave."""

    async def run(self, members: PoolMembers) -> None:
        """Keep a connection to every configured server, and tell `members` of each join and leave, until cancelled."""
        ...

    def suspect(self, engine: Engine) -> None:
        """A batch failed there: remove it now, probe it, and let it join again when it answers well."""
        ...


class PoolMembers(Protocol):
    """The part of the pipeline that the pool calls."""

    def join(self, engine: Engine, tokenizer: Tokenizer) -> None:
        """A server is ready for batches."""
        ...

    def leave(self, engine: Engine) -> None:
        """A server is gone, or suspect; its batches in flight end by themselves."""
        ...


def outgoing(batch: Batch) -> OutgoingBatch:
    """The batch in its wire format: all ids and lengths concatenated."""
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
