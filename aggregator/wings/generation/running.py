"""A running sequence: one generation on one server, until it is complete or resumes on another server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import inf
from typing import TYPE_CHECKING

from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import BatchFailed, Code, server_error
from aggregator.model_server import ModelServer
from aggregator.request.request import Failure, Request
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import ID_BYTES, Priority, WorkItem
from aggregator.wings.generation.generation import Generation, generation_of
from aggregator.wings.generation.replica import GeneratingReplica
from aggregator.wings.generation.server import GeneratingServer
from protos.modelserver.v1.modelserver_pb2 import Sampling

if TYPE_CHECKING:
    from protos.generation.v1.generation_pb2 import TokenLogprobs

_CLEARED_AFTER = 32
"""New tokens after which a sequence is no suspect: one that makes a server fail does so at the same token again."""
_LATE = Failure(Code.DEADLINE_EXCEEDED, "the deadline passed before the text was complete")
_NO_FIRST_TOKEN = Failure(Code.DEADLINE_EXCEEDED, "no token came within first_token_timeout")
_COPIED = "temperature", "top_p", "top_k", "seed", "repetition_penalty", "logprobs"


@dataclass(slots=True, eq=False)
class RunningSequence:
    """One generation on one server; a `ServerSequence`.

    `begun`: its batch waits for it no longer. It has its first token or, in a batch of suspects, enough tokens to be
    cleared; or it has left the server. `lost`: why the server failed before it had begun. `first_token_s`: when its
    first token on this server came. `tokens_before`: the new tokens that earlier servers generated. `on_end` is called
    when it is complete, or failed for good; `on_lost` when it is to resume elsewhere.
    """

    model_revision: ModelRevision
    server: GeneratingServer
    batch: Batch
    item: WorkItem
    _: KW_ONLY
    account: int
    on_end: Callable[[RunningSequence, Failure | None], None]
    on_lost: Callable[[RunningSequence, BatchFailed], None]
    clock: Callable[[], float]
    request: Request = field(init=False)
    generation: Generation = field(init=False)
    tokens_before: int = field(init=False)
    first_token_s: float = inf
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    lost: BatchFailed | None = None
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.request: Request = self.item.waiters[0].request
        generation = self.generation = generation_of(self.request)
        self.tokens_before = len(generation.token_ids)

    @property
    def priority(self) -> Priority:
        return self.request.priority

    def start(self) -> None:
        generation = self.generation
        if generation.started_s == inf:
            generation.started_s = self.clock()
        replica_of(self.batch).began()
        deadline_s = self.request.deadline_s
        self._wait_until(deadline_s if generation.token_ids else min(deadline_s, generation.first_token_by_s))
        self.server.generate(self)

    def abort(self) -> None:
        """Stop it; its room is free after the running step."""
        self.server.abort(self)
        self._leave()

    @property
    def token_ids(self) -> bytes:
        return self.item.token_ids

    @property
    def sampling(self) -> Sampling:
        asked = self.generation.sampling
        room = self.model_revision.description.max_input_tokens - len(self.token_ids) // ID_BYTES
        most = min(room, self.generation.left_tokens or room)
        given = {name: getattr(asked, name) for name in _COPIED if asked.HasField(name)}
        return Sampling(
            max_tokens=most,
            min_tokens=min(most, max(0, asked.min_tokens - self.tokens_before)),
            stop_token_ids=asked.stop_token_ids,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            ignore_eos=asked.ignore_eos,
            **given,
        )

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], stop_tokens: int) -> None:
        if self.first_token_s == inf:
            self._first_token()
        elif self._new_tokens >= _CLEARED_AFTER:
            self.begun.set()
        if self.generation.extend(token_ids, logprobs, stop_tokens):
            self.server.abort(self)
            self._end(None)
        else:
            self.request.source.progressed(self.request)

    def end(self, finish_reason: int) -> None:
        self.generation.end(finish_reason)
        self._end(None)

    def fail(self, code: Code, message: str) -> None:
        self.item.refusal = code, message
        self.server_lost(server_error(code, message))

    def server_lost(self, error: BatchFailed) -> None:
        """The server is gone, or its engine failed: it resumes elsewhere, after the tokens that it has."""
        generation = self.generation
        generation.server_failed(cleared=self._new_tokens >= _CLEARED_AFTER)
        self.item.token_ids = generation.ids_so_far
        self.item.token_count = len(self.item.token_ids) // ID_BYTES
        if not self.begun.is_set():
            self.lost = error
        self._leave()
        self.on_lost(self, error)

    @property
    def _new_tokens(self) -> int:
        return len(self.generation.token_ids) - self.tokens_before

    def _first_token(self) -> None:
        self.first_token_s = now_s = self.clock()
        if not self.generation.token_ids:
            self.generation.first_token_s = now_s
        deadline_s = self.item.waiters[0].deadline_s = self.request.deadline_s
        self._wait_until(deadline_s)
        if not self.batch.isolated:
            self.begun.set()

    def _late(self) -> None:
        self.server.abort(self)
        waited = not self.generation.token_ids and self.generation.first_token_by_s < self.request.deadline_s
        self._end(_NO_FIRST_TOKEN if waited else _LATE)

    def _end(self, failure: Failure | None) -> None:
        self._leave()
        self.on_end(self, failure)

    def _leave(self) -> None:
        self._wait_until(inf)
        replica_of(self.batch).finished()
        observe_load(self.server, self.batch)
        self.begun.set()

    def _wait_until(self, deadline_s: float) -> None:
        """Set the time after which it is late (`inf`: none)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_s < inf:
            delay_s = max(0.0, deadline_s - self.clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._late)


async def first_tokens(
    sequences: Sequence[RunningSequence], server: ModelServer, batch: Batch, clock: Callable[[], float]
) -> StepReport:
    """Wait until every sequence of a batch has begun.

    Raises BatchFailed if their server was lost before; the batch then holds the items that had not begun.
    """
    for sequence in sequences:
        await sequence.begun.wait()
    lost = {sequence.item: sequence.lost for sequence in sequences if sequence.lost is not None}
    if lost:
        batch.items[:] = lost
        raise next(iter(lost.values()))
    replica, load, now_s = replica_of(batch), server.load, clock()
    times = [sequence.first_token_s for sequence in sequences if sequence.first_token_s < inf]
    first_tokens_s = max(times, default=now_s)
    report = StepReport(
        step_tokens=batch.token_count,
        step_duration_s=max(0.0, first_tokens_s - max(batch.packed_s, replica.first_tokens_s)),
        queued_tokens=0 if load is None else load.waiting_tokens,
        idle_before_s=0.0,
        staged_s=0.0,
    )
    replica.first_tokens_s = first_tokens_s
    observe_load(server, batch)
    return report


def observe_load(server: ModelServer, batch: Batch) -> None:
    load = server.load
    if load is not None:
        replica_of(batch).observe_load(load.free_kv_tokens, load.running)


def replica_of(batch: Batch) -> GeneratingReplica:
    replica = batch.replica
    assert isinstance(replica, GeneratingReplica), "A prompt was sent to a server that embeds. This is a bug."
    return replica
