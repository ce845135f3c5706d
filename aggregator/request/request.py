"""A request with the outcome of each input: the data that every station passes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from sys import getsizeof
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aggregator.errors import Code, InvalidRequest, TokenbatchError
from aggregator.request.vector import Vector
from aggregator.scheduler.budget import ServiceLevel
from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.work_item import ID_BYTES, Priority, Query, Task
from protos.embedding.v1 import embedding_pb2 as pb

if TYPE_CHECKING:
    from aggregator.request.kind import Kind


class TokenAccount(Protocol):
    """Counts the tokens that are held; a Protocol, because `aggregator.admission.bounds` is a layer above."""

    def charge(self, token_count: int, tenant: str = "", *, refusable: bool) -> None: ...

    def release(self, token_count: int, tenant: str = "", *, refusable: bool) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Where requests that were queued together, at `queued_s`, are counted."""

    admission: TokenAccount
    queue: TokenQueue
    slo: ServiceLevel | None
    queued_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one input has no vector; `retry_after_s` is 0 if no pause is known to help.

    `attempts`: how often it was tried. `field`: as in `TokenbatchError`.
    """

    code: Code
    message: str
    retryable: bool = False
    retry_after_s: float = 0.0
    attempts: int = 1
    field: str = ""

    @classmethod
    def of(cls, error: TokenbatchError) -> Failure:
        return cls(error.code, str(error), error.retriable, error.retry_after_s, field=error.field)


_OF_INPUTS = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.INTERNAL})
"""Codes of failures that can be one input's."""
MAX_TENANT_CHARACTERS = 256
"""Of a tenant's name, which quotas, metrics and logs keep; a SPIFFE id or a URL has room."""


def checked_tenant(tenant: str, field: str) -> str:
    """A name that came in `field`. Raises InvalidRequest."""
    if len(tenant) > MAX_TENANT_CHARACTERS:
        message = f"{field} has {len(tenant)} characters: a tenant's name has at most {MAX_TENANT_CHARACTERS}"
        raise InvalidRequest(message, field)
    return tenant


class Result:
    """The result of an input where it is no row of a batch; used by `wings/generation`."""

    __slots__ = ()


Outcome = Vector | Result | Failure


@dataclass(frozen=True, slots=True)
class Chunks:
    """A document in chunks, as one input: the texts of all, or its token ids with the `spans` of the chunks in them.

    Both are int32 little endian; a span is the position of a chunk's first token, and that behind its last.
    """

    texts: Sequence[str] = ()
    token_ids: bytes = b""
    spans: bytes = b""

    @property
    def count(self) -> int:
        return len(self.texts) or len(self.spans) // (2 * ID_BYTES)

    def __len__(self) -> int:
        """Its characters; a token id counts as four, as in other inputs."""
        return sum(map(len, self.texts)) + len(self.token_ids)

    def __sizeof__(self) -> int:
        return sum(map(getsizeof, self.texts)) + len(self.token_ids) + len(self.spans)


Input = str | bytes | Chunks
"""A text, token ids as little-endian int32, or a document in chunks."""


@dataclass(frozen=True, slots=True)
class Options:
    """The sender's wishes for every vector of a request.

    `truncate_to`: the tokens that truncation leaves; 0: as many as the model takes. `asked`: the same before the
    model's defaults applied.
    """

    dimensions: int = 0
    encoding: int = pb.ENCODING_FLOAT32
    normalize: bool | None = None
    truncate: int = pb.TRUNCATE_NONE
    input_type: int = pb.INPUT_TYPE_UNSPECIFIED
    truncate_to: int = 0
    asked: Options | None = None


MAX_INPUTS = 2048
"""Inputs of one request, or texts that one is to score, by every way in: OpenAI's API allows as many."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults of a topic or listener for fields that a request leaves empty, and its limits."""

    source: Source
    model: str
    priority: Priority
    tenant: str = ""
    max_inputs: int = MAX_INPUTS
    trusts_tenant: bool = True


class Stage(Enum):
    """How far a request came. Each stage may follow those before it."""

    RECEIVED = auto()
    ADMITTED = auto()  # it is not refused again for lack of room
    GIVEN_UP = auto()  # its caller has left


@dataclass(slots=True, eq=False)
class Request:
    """One request until its last input is complete.

    `outcomes` has one place per input; of one input
    it is a tuple, which all such requests share until they are complete. `remaining` counts the empty places. Its reply
    goes to `source`, which finds in `origin`, of a kind of its own, whom to reply to.
    From admission until its reply is delivered it occupies `token_count` tokens where `held` says; `queries` are
    its inputs in the queue, kept only where a caller may go away (gRPC). `redriven`: it failed before, and an operator
    wants it tried again.
    Times are monotonic seconds; a deadline of `inf` means none. `details`: what only its `kind` knows of it.
    `replay`: it may have been answered before, by `replay_revision` if that is
    known.
    """

    kind: Kind
    request_id: str
    model: str
    model_revision: str
    inputs: Sequence[Input]
    options: Options
    priority: Priority
    source: Source
    tenant: str
    received_s: float
    deadline_s: float
    origin: object
    outcomes: Sequence[Outcome | None]
    remaining: int
    failed: bool = False
    traceparent: bytes | None = None
    held: Held | None = None
    token_count: int = 0
    queries: Sequence[Query] = ()
    stage: Stage = Stage.RECEIVED
    redriven: bool = False
    details: object = None
    replay: bool = False
    replay_revision: str = ""

    @property
    def task(self) -> Task:
        return self.kind.task

    @property
    def characters(self) -> int:
        """The characters of all its texts; a token id counts as four."""
        return self.kind.characters(self)

    @property
    def text_bytes(self) -> int:
        """The memory of all its texts and token ids: a text that many pairs share is there once."""
        return self.kind.text_bytes(self)

    @property
    def vector_count(self) -> int:
        """How many vectors or scores it asks for: one per input, or one per chunk of it."""
        inputs = self.inputs
        if len(inputs) == 1 and not isinstance(inputs[0], Chunks):
            return 1
        return sum(each.count if isinstance(each, Chunks) else 1 for each in inputs)

    def hold(self, held: Held, token_count: int) -> None:
        self.held = held
        self.token_count = token_count
        held.admission.charge(token_count, self.tenant, refusable=self.source.refusable)

    def release(self) -> None:
        """Count it out, once. Its queries refer back to it: kept, both would wait for the garbage collector."""
        held, self.held = self.held, None
        self.queries = ()
        if held is not None:
            held.admission.release(self.token_count, self.tenant, refusable=self.source.refusable)

    def complete_input(self, index: int, outcome: Outcome) -> bool:
        """Record one input's outcome; True if no other is missing."""
        assert self.outcomes[index] is None, "An input was completed twice. This is a bug."
        if isinstance(self.outcomes, list):
            self.outcomes[index] = outcome
        else:
            self.outcomes = (outcome,)
        self.failed = self.failed or isinstance(outcome, Failure)
        self.remaining -= 1
        return self.remaining == 0

    @property
    def code(self) -> Code:
        """OK when every input has a vector, else the first failure's code."""
        failure = self.failure
        return Code.OK if failure is None else failure.code

    @property
    def failure(self) -> Failure | None:
        """The first input's failure; None when every input has a vector."""
        if not self.failed:
            return None
        return next(outcome for outcome in self.outcomes if isinstance(outcome, Failure))

    def free_vectors(self) -> None:
        """Drop the vectors and keep their metadata: the reply is encoded, and may wait for long."""
        for outcome in self.outcomes:
            if isinstance(outcome, Vector):
                outcome.batch = outcome.batch.emptied

    @property
    def input_at_fault(self) -> int | None:
        """The index of the first input that failed, if it failed by itself; None where the whole request did."""
        for index, outcome in enumerate(self.outcomes if self.failed else ()):
            if isinstance(outcome, Failure):
                alone = len(self.outcomes) == 1 or any(each is not outcome for each in self.outcomes)
                return index if alone and outcome.code in _OF_INPUTS and not outcome.field else None
        return None

    def overrule(self, failure: Failure) -> None:
        """Replace every outcome: the reply could not be delivered."""
        self.outcomes = [failure] * len(self.outcomes)
        self.failed = True

    def fail(self, failure: Failure) -> bool:
        """Fail every input without an outcome; True if there was one."""
        if not self.remaining:
            return False
        self.outcomes = [failure if outcome is None else outcome for outcome in self.outcomes]
        self.failed = True
        self.remaining = 0
        return True


KAFKA, GRPC, HTTP = "kafka", "grpc", "http"
"""Names of sources."""


class Backlog(NamedTuple):
    """The backlog of one partition that `source` reads. A stream is one partition, with a name instead of a number.

    `model`: of requests that name none. `records` were not fetched or claimed yet. `uncommitted_span`: records from the
    committed offset to the highest completed one. `position`: the offset to be handed out next. `outranked`: it is
    paused, and less urgent records than the topic's own class fill the queue: more urgent ones may wait behind them.
    """

    source: str
    topic: str
    partition: int | str
    model: str
    records: int
    uncommitted_span: int = 0
    paused: bool = False
    position: int = 0
    outranked: bool = False


Backlogs = Callable[[], Sequence[Backlog]]


class Paced(NamedTuple):
    """The demand of requests that have hours: a rate that ends them in time, and the tokens that they hold now."""

    tokens_per_s: float
    held_tokens: float


Receive = Callable[[], Awaitable[Sequence[Request]]]
"""Waits for the next requests, at least one; none once the source has ended."""


class Source(ABC):
    """Where requests come from, and where their replies go: all that the pipeline and `app.py` call of one.

    Its life: `prepare`, then `run` and the `receivers` beside each other; to end, `stop`, then `delivered` when every
    request is complete, then `close`. An implementation inherits the rest.
    """

    name: str
    address: str = ""
    """Where it is called once it is prepared; empty where it calls others."""
    refusable: bool
    """Whether its senders wait for an answer, so that they are refused at a limit.

    Else it is paused, and a request without a reply is read again later.
    """

    @property
    @abstractmethod
    def receivers(self) -> Sequence[Receive]:
        """Each is called again and again, beside the others, until it returns no request."""

    @abstractmethod
    def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        """Reply to completed requests of this source; yields each once its reply is delivered.

        A request whose reply can never be delivered has failed from then on, whatever its outcome was.
        """

    def progressed(self, request: Request) -> None:
        """The request's generation has new tokens; a source that replies once ignores this."""

    async def prepare(self, timeout_s: float) -> None:
        """Make sure that all it needs is there; callers may come from now on. Raises StartError."""

    async def run(self) -> None:
        """Do the work beside receiving, until cancelled."""

    def reserve(self, request: Request) -> None:
        """Hold the room of a request's answer, whose options are complete; a source that pauses did so before.

        Raises TokenbatchError, if there is none.
        """

    def receive_now(self) -> None:
        """A model server has room: hand out the requests that were held back to be batched."""

    def pause(self, away: Callable[[str, Task], bool], full: Callable[[str, Priority], bool]) -> None:
        """Pause topics whose own model is `away` for their task, or that ask for a model `full` for their class.

        Models are given by name or alias. A source whose senders are refused has nothing to pause.
        """

    async def stop(self, grace_s: float) -> None:
        """Take no more requests from now on. Returns when no sender waits, or after `grace_s`."""

    async def delivered(self) -> None:
        """Wait until everything is written that follows from completed requests, such as dead letters."""

    async def close(self, timeout_s: float) -> None:
        """Leave and disconnect, within the time-out; other aggregators read requests without a reply again."""

    def trouble(self) -> str | None:
        """Why this process is not ready, if the source is the reason."""
        return None

    def backlogs(self) -> Sequence[Backlog]:
        """The backlog of every partition that this source reads."""
        return ()

    def paced(self, model: str) -> Paced | None:
        """The demand for a model where it is not what arrives and is held; None where it is."""
        del model
        return None
