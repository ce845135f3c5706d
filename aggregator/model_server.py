"""The interfaces to model servers: a server's description, the batches sent to it and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from aggregator.scheduler.curve import Curve
from aggregator.scheduler.dispatcher import Batch, DispatchPolicy
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.work_item import DEFAULT_TASK, ID_BYTES, Priority, Task
from aggregator.tokenizers.tokenizer import Tokenizer
from protos.modelserver.v1 import modelserver_pb2 as pb

PRIORITIES: dict[Priority, pb.Priority] = {
    Priority.INTERACTIVE: pb.PRIORITY_INTERACTIVE,
    Priority.DEFAULT: pb.PRIORITY_DEFAULT,
    Priority.BACKGROUND: pb.PRIORITY_BACKGROUND,
}
"""The classes by their numbers in the wire format."""


class Usage:
    """What a revision's requests hold beside the tokens of their inputs: by default nothing."""

    @property
    def kv_token_s_per_token(self) -> float:
        """KV-cache occupancy (tokens × seconds) per token that admission counts."""
        return 0.0

    def expected_tokens(self, details: object) -> int:
        """The input tokens that would take as long as the rest of a request with these details."""
        del details
        return 0


@dataclass(frozen=True, slots=True)
class Details:
    """A server's task, and what only this task's kind knows of the server; here that of a server that embeds.

    `agreed`: the fields of descriptions in which all servers of one revision agree. `is_vectors`: whether its rows are
    vectors. `is_repeatable`: whether equal inputs get equal results. `meets_goal`: whether a latency target sets its
    token budgets.
    """

    task: ClassVar[Task] = DEFAULT_TASK
    agreed: ClassVar[tuple[str, ...]] = (
        "dimensions",
        "matryoshka_dimensions",
        "normalizes",
        "query_prompt",
        "document_prompt",
        "labels",
    )

    is_vectors: ClassVar[bool] = True
    is_repeatable: ClassVar[bool] = True
    meets_goal: ClassVar[bool] = True

    @property
    def sequence_s(self) -> float | None:
        """The seconds that each of its sequences adds to a step; None: it has no sequences."""
        return None

    def policy(self, policy: DispatchPolicy) -> DispatchPolicy:
        """How its revisions' batches are packed and sent."""
        return policy

    def usage(self) -> Usage:
        """What a revision of such servers counts, from its first server on."""
        return Usage()

    def replica(
        self, description: ServerDescription, budget: int, policy: ReplicaPolicy, usage: Usage
    ) -> Replica | None:
        """A server as a revision with this usage sees it; None: as one that gives rows."""
        del description, budget, policy, usage
        return None

    def operation(self, labels: Sequence[str]) -> str:
        """The name of a batch's computation, by OpenTelemetry's conventions for generative AI."""
        return "embeddings" if self.is_vectors else self.shown(labels)

    def shown(self, labels: Sequence[str]) -> str:
        """The task as clients see it; `labels`: of the server's scores."""
        del labels
        return self.task


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """A model server's checked description (`Describe`) for one task.

    `labels`: of its columns, if they have names. `pools_spans`: it embeds
    documents in chunks. `never_zero`: no row is all zero. `beside`: of a server that embeds and generates, its
    description as one that generates.
    """

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
    beside: ServerDescription | None = None
    details: Details = Details()
    labels: tuple[str, ...] = ()
    pools_spans: bool = False
    never_zero: bool = False

    @property
    def task(self) -> Task:
        return self.details.task

    @property
    def kind(self) -> str:
        """Its task as clients see it."""
        return self.details.shown(self.labels)

    @property
    def by_task(self) -> dict[Task, ServerDescription]:
        """Its descriptions, one per task that it does."""
        return {self.task: self} if self.beside is None else {self.task: self, self.beside.task: self.beside}


def differences(one: ServerDescription, other: ServerDescription) -> list[str]:
    """The fields in which two servers of one model revision differ, although their answers must be interchangeable.

    Servers of different tasks share the tokenizer only. Servers that embed may take inputs of different lengths.
    """
    names: tuple[str, ...] = ("tokenizer_fingerprint", "vocabulary_size")
    if one.task is other.task:
        names += one.details.agreed
    return [
        f"{name} {getattr(one, name)!r}, not {getattr(other, name)!r}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    ]


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """One batch in its wire format: ids, lengths, places of second texts and spans, if any, int32 little endian."""

    batch_id: str
    token_ids: bytes
    lengths: bytes
    query_count: int
    token_count: int
    attempt: int
    isolate: bool
    max_step_tokens: int
    second_segments: bytes = b""
    span_counts: bytes = b""
    spans: bytes = b""
    priority: Priority = Priority.DEFAULT
    max_shared_tokens: int = 0

    @property
    def row_count(self) -> int:
        """The vectors that it gives: one per query, or one per span of it."""
        return int(self.rows.sum()) if self.span_counts else self.query_count

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """The vectors of each query, int32 [queries]."""
        if not self.span_counts:
            return np.ones(self.query_count, np.int32)
        counts: npt.NDArray[np.int32] = np.frombuffer(self.span_counts, "<i4")
        return np.maximum(counts, np.int32(1))


@dataclass(frozen=True, slots=True)
class GenerationLoad:
    """The load of a server that generates, from all aggregators.

    `embed_room_tokens`: of a server that also embeds, the tokens of embeddings that a step holds beside it. The rest is
    of its last step, which was reported at `reported_s` (monotonic seconds).
    """

    free_kv_tokens: int
    running: int
    waiting_tokens: int
    step_duration_s: float
    embed_room_tokens: int | None = None
    decoding_sequences: int = 0
    prefill_tokens: int = 0
    embedding_tokens: int = 0
    reported_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one batch; `matrix` is float32 [rows, dimensions], pooled, not normalised.

    `errors` holds (position, code, message) of the queries that failed; `report` describes the engine step.
    `unclaimed_s`: engine time of other batches that no answer reported.
    """

    matrix: npt.NDArray[np.float32]
    errors: Sequence[tuple[int, int, str]]
    report: StepReport
    unclaimed_s: float = 0.0


class ModelServer(Protocol):
    """One model server: `embed` of one that gives rows.

    A Protocol, because admission keeps the servers of each model and does not know `replicas`, the layer beside it.
    """

    @property
    def description(self) -> ServerDescription: ...

    async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
        """Execute one batch.

        Raises ModelServerBusy (never started), ModelServerLost or EngineFailed. A response of the wrong shape is
        ModelServerLost too.
        """
        ...

    @property
    def load(self) -> GenerationLoad | None:
        """After its last step; None before the first, and of a server that does not generate."""
        ...

    @property
    def last_steps(self) -> Sequence[GenerationLoad]:
        """The same after each of its last steps, in their order; not all of them."""
        ...


class PoolMembers(Protocol):
    """The part of the pipeline that the pool calls: a Protocol, because the pipeline is a layer above the pool."""

    def join(self, server: ModelServer, tokenizer: Tokenizer) -> None: ...

    def leave(self, server: ModelServer) -> None:
        """A server is gone, or suspect; its batches in flight end by themselves."""
        ...


def outgoing(batch: Batch) -> OutgoingBatch:
    """The batch in its wire format: all ids and lengths concatenated."""
    items, marks = batch.items, dict[str, bytes]()
    token_ids = b"".join([item.token_ids for item in items])
    if len(token_ids) > batch.token_count * ID_BYTES:
        sizes = [item.token_count * ID_BYTES for item in items]
        token_ids = b"".join([item.token_ids[:size] for item, size in zip(items, sizes, strict=True)])
        behind = b"".join([item.token_ids[size:] for item, size in zip(items, sizes, strict=True)])
        counts = np.array([item.chunks for item in items], "<i4")
        marks = {"span_counts": counts.tobytes(), "spans": behind} if counts.any() else {"second_segments": behind}
    return OutgoingBatch(
        batch_id=batch.batch_id,
        token_ids=token_ids,
        lengths=np.array([item.token_count for item in items], dtype="<i4").tobytes(),
        query_count=len(items),
        token_count=batch.token_count,
        attempt=batch.attempt,
        isolate=batch.isolated,
        max_step_tokens=max(batch.token_budget, batch.token_count),
        priority=batch.priority,
        max_shared_tokens=max(batch.shared_budget, batch.token_count),
        **marks,
    )
