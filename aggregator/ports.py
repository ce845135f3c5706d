"""What the pipeline asks of the world, in the order of the data: records, token counts, engines, replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aggregator.core.lanes import StepReport
from aggregator.core.query import Priority
from aggregator.core.saturation import Curve
from aggregator.core.watermark import Lease
from aggregator.request import Request


class Record(Protocol):
    """One Kafka record as it was read; an aiokafka ConsumerRecord is one."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Deliveries(Protocol):
    """Kafka intake: leased records in, commits out.

    A lease settles (by `lease.watermark.settle`) once its outcome is acknowledged by the broker; the
    implementation commits watermarks on its own clock, on revocation and at the end.
    """

    async def fetch(self) -> Sequence[Lease]:
        """The next records, at least one, of partitions that are not held; `lease.record` is a Record."""
        ...

    def hold(self, topics: frozenset[str]) -> None:
        """Pause exactly these topics' partitions (those over their span cap stay paused on their own)."""
        ...

    def half_span_holders(self) -> Sequence[Lease]:
        """Leases that hold back a watermark whose span passed half of its cap: their inputs are to be aged."""
        ...


@dataclass(slots=True, eq=False)  # one per record: a frozen one costs four times as much to make
class OutgoingRecord:
    """A reply or a dead letter on its way out."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes]]


Heard = Callable[[Sequence[int], Sequence[Exception | None]], None]
"""Hears the broker's words on some of the records sent: where these stand, and the words."""


class Producer(Protocol):
    """Kafka output: idempotent, acks=all, in batches."""

    async def send(self, records: Sequence[OutgoingRecord], heard: Heard | None = None) -> Sequence[Exception | None]:
        """Send and wait for the broker's word on each: None when acknowledged.

        An exception is final for its record (topic missing, not authorised, too large); what can pass (no
        leader, broker away) is waited for. `heard` hears of each record once: of all at the end, but while some are
        waited for, once a second of the others.
        """
        ...


LetGo = Callable[[Sequence[Request]], None]
"""Frees what settled requests held."""


class KafkaPath(Protocol):
    """The Kafka side of the pipeline: requests in, answers and commits out."""

    async def receive(self) -> Sequence[Request]:
        """The next requests, at least one; empty once fetching has been stopped.

        What could not be decoded comes as a request whose every input has failed already.
        """
        ...

    async def receive_large(self) -> Sequence[Request]:
        """The same of those that are large, which take longer and hold up no others; none of topics that are held."""
        ...

    def accept(self, request: Request) -> None:
        """Note which model its topic's records ask for.

        Raises InvalidRequest for a request whose reply could not be written, however it turns out.
        """
        ...

    async def settle(self, requests: Sequence[Request], let_go: LetGo) -> None:
        """Reply, wait for the broker's word on each, then free the offsets; what is to be kept is written after.

        A request whose reply can never be written has failed from then on, whatever its outcome was. `let_go` is
        told of each once its word has come, of all together unless some are waited for.
        """
        ...

    async def written(self) -> None:
        """Wait for what is still to be written after `settle`."""
        ...

    def stuck(self) -> Sequence[Lease]:
        """Leases that hold their partition's watermark so far back that their inputs are to be aged."""
        ...

    def drop_fenced(self) -> None:
        """Forget what was not yet received of partitions that were given back: whoever reads it next redoes it."""
        ...

    def hold(self, away: Callable[[str], bool], full: Callable[[str, Priority], bool]) -> None:
        """Pause exactly the topics whose own model is `away`, or of whose models one is `full` for their class.

        Models are given by name or alias; a topic's are its own, and those that its records asked for.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of several texts, end to end, special tokens included, nothing truncated.

    `ids` int32 little endian [Σ lengths], `lengths` int32 [texts].
    """

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


class Tokenizer(Protocol):
    """The model's own fast tokenizer; thread-safe, called off the event loop."""

    def count(self, texts: Sequence[str]) -> TokenBatch:
        """Tokenize several texts at once."""
        ...

    def part(self, text: str, characters: int, *, keep_end: bool) -> str | None:
        """A text's start, or its end, of at most so many characters, whose tokens are the whole text's first, or last.

        A text that is no longer is its own part. None: it has no place where it may be cut.
        """
        ...

    def join_ids(self, before: bytes, after: bytes) -> bytes:
        """Token ids of a text of those of its two parts, special tokens around the whole; int32 little endian."""
        ...

    def truncate_ids(self, token_ids: bytes, max_tokens: int, *, keep_end: bool) -> bytes:
        """Token ids of one over-long text cut to `max_tokens`, special tokens kept; int32 little endian."""
        ...


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
