"""Have texts generated: each begins on one server and, should that one go away, goes on at another where it was.

    begin → (first token → done) → … → complete

A batch of prompts is out until each has its first token, as a batch of an embedding model is until its vectors come:
what packs, paces, retries and isolates batches is the same for both. After that its texts go on by themselves. A batch
of suspects is out until each has gained so many tokens that it is not what made servers fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import BatchFailed, Code, EngineFailed, ModelServerLost
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.replicas.engine import Pool, TextEngine
from aggregator.replicas.texts.text import Text
from aggregator.request import Failure, Request, request_of
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.generating_replica import GeneratingReplica
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import WorkItem
from protos.modelserver.v1.modelserver_pb2 import Sampling

if TYPE_CHECKING:
    from protos.generation.v1.generation_pb2 import TokenLogprobs

_LOG = logging.getLogger(__name__)
_ID_BYTES = 4
_MOST_ATTEMPTS = 16
"""A text beneath which so many servers went away is not tried again, though no one failure was proven to be its."""
_MOST_RESTARTS = 2
"""A text beneath which so many servers restarted, the last one while it was alone, is given up.

A lost connection alone proves nothing.
"""
_GOES_WELL = 32
"""New tokens after which a text is no suspect: what makes a server fail does so at the same token again."""
_POISON = Failure(Code.INTERNAL, "this prompt, alone on its server, made the engine fail")
_LATE = Failure(Code.DEADLINE_EXCEEDED, "the deadline passed before the text was complete")
_NO_FIRST_TOKEN = Failure(Code.DEADLINE_EXCEEDED, "no token came within first_token_timeout")
_COPIED = "temperature", "top_p", "top_k", "seed", "repetition_penalty", "logprobs"


class Generating:
    """The texts under way at all servers."""

    def __init__(
        self,
        pool: Pool,
        limits: AdmissionLimits,
        metrics: Metrics,
        tracing: Tracing,
        *,
        complete: Callable[[Sequence[Request]], None],
        changed: Callable[[ModelRevision], None],
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        """`complete` replies to requests; `changed` is told when a server of a revision has more room."""
        self._pool = pool
        self._limits = limits
        self._metrics = metrics
        self._tracing = tracing
        self._complete = complete
        self._changed = changed
        self._clock = clock
        self._jitter = jitter
        self._under_way: dict[Request, _UnderWay] = {}
        self._lost: list[_UnderWay] = []

    @property
    def now_s(self) -> float:
        """Monotonic."""
        return self._clock()

    def __len__(self) -> int:
        """Texts under way."""
        return len(self._under_way)

    def begin(self, model_revision: ModelRevision, engine: TextEngine, batch: Batch) -> None:
        """Start a batch's texts, or let them go on."""
        replica = batch.replica
        assert isinstance(replica, GeneratingReplica), "A text was sent to a server that embeds. This is a bug."
        begun = _Begun(model_revision, engine, batch, replica)
        now_s = self._clock()
        server = engine.description
        for item in tuple(batch.items):
            request = request_of(item.waiters[0])
            text = request.text
            if not item.alive or text is None:
                continue
            restarted = text.begins_on(server.address, server.instance_id)
            if restarted and text.alone and text.restarts >= _MOST_RESTARTS:
                self._failed(begun)
                self._changed(model_revision)
                return
            if text.started_s == inf:
                text.started_s = now_s
            under_way = _UnderWay(self, begun, item, request, text)
            begun.waiting.add(under_way)
            self._under_way[request] = under_way
            replica.began()
        if not begun.waiting:
            self._done(begun)
        for under_way in tuple(begun.waiting):
            under_way.wait_until(_expected_by_s(under_way))
            engine.generate(under_way)

    def give_up(self, request: Request) -> None:
        """Its caller went away: what it holds at a server is free after the step that runs."""
        under_way = self._under_way.get(request)
        if under_way is not None:
            self._abort(under_way)

    # What texts hear of their servers.

    def first_token(self, under_way: _UnderWay) -> None:
        """It has one here."""
        begun = under_way.begun
        begun.first_tokens_s = now_s = self._clock()
        if not under_way.text.token_ids:
            under_way.text.first_token_s = now_s
        under_way.item.waiters[0].deadline_s = under_way.request.deadline_s
        under_way.wait_until(under_way.request.deadline_s)
        if not begun.batch.isolated:
            self.goes_well(under_way)

    def goes_well(self, under_way: _UnderWay) -> None:
        """Its batch waits for it no more."""
        begun = under_way.begun
        begun.waiting.discard(under_way)
        if not begun.waiting and not begun.done and begun.error is None:
            self._done(begun)

    def finished(self, under_way: _UnderWay, failure: Failure | None = None) -> None:
        """It is complete, or has failed for good."""
        self._end(under_way)
        request, text = under_way.request, under_way.text
        now_s = self._clock()
        self._limits.charge(request, len(text.token_ids), now_s)
        under_way.begun.model_revision.finished_text(text, now_s - text.started_s)
        self._metrics.generated(request.model, text, now_s - request.received_s, request.received_s, failure)
        self._tracing.generated(request, text, now_s, failure.code if failure is not None else None)
        query = under_way.item.waiters[0]
        if not query.done:
            query.item = None
            if request.remaining and request.complete_input(0, failure or text):
                self._complete([request])

    def late(self, under_way: _UnderWay) -> None:
        """Its deadline has passed."""
        under_way.begun.engine.abort(under_way)
        self.finished(under_way, _LATE if under_way.text.token_ids else _first_token_failure(under_way))

    def lost(self, under_way: _UnderWay, error: BatchFailed) -> None:
        """Its server is gone, or its engine failed: it goes on elsewhere, with all others of that server."""
        if not self._lost:
            asyncio.get_running_loop().call_soon(self._go_on)
        begun = under_way.begun
        begun.error = begun.error or error
        self._lost.append(under_way)

    def _go_on(self) -> None:
        """Send again what was lost: batches that had not begun as failed ones, the others at their place."""
        lost, self._lost = self._lost, []
        now_s = self._clock()
        batches: dict[_Begun, list[WorkItem]] = {}
        running: dict[tuple[ModelRevision, str, bool], list[WorkItem]] = {}
        for under_way in lost:
            begun = under_way.begun
            self._end(under_way)
            text, item = under_way.text, under_way.item
            server = begun.engine.description
            alone = begun.batch.isolated and len(begun.batch.items) == 1
            went_well = under_way.gained >= _GOES_WELL
            text.failed_on(server.address, server.instance_id, went_well=went_well, alone=alone)
            item.token_ids = text.ids_so_far
            item.token_count = len(item.token_ids) // _ID_BYTES
            if text.attempts > _MOST_ATTEMPTS:
                self._poison(begun.model_revision, item)
            elif begun.done:
                key = begun.model_revision, begun.replica.name, text.failures > 1
                running.setdefault(key, []).append(item)
            else:
                batches.setdefault(begun, []).append(item)
        for begun, items in batches.items():
            begun.done = True
            begun.batch.items[:] = items
            if begun.batch.isolated and len(items) == 1 and isinstance(begun.error, ModelServerLost):
                begun.model_revision.dispatcher.refused(begun.batch, now_s, self._jitter())  # no proof: see `begin`
            else:
                self._failed(begun)
        for (model_revision, replica, again), items in running.items():
            model_revision.dispatcher.lost(items, replica, now_s, self._jitter(), again=again)
        for begun, count in Counter(under_way.begun for under_way in lost).items():
            self._tell(begun, count)
            self._changed(begun.model_revision)

    def _tell(self, begun: _Begun, count: int) -> None:
        error = begun.error
        assert error is not None, "A text was lost for no reason. This is a bug."
        fields = {"batch_id": begun.batch.batch_id, "replica": begun.replica.name, "code": error.code.name}
        if not isinstance(error, EngineFailed):  # its words may tell a text
            fields["error"] = str(error)
        _LOG.warning("texts go on elsewhere", extra={**fields, "texts": count})
        self._metrics.retried(error.code, count)
        if isinstance(error, ModelServerLost):
            self._pool.suspect(begun.engine)

    def _failed(self, begun: _Begun) -> None:
        for poison in begun.model_revision.dispatcher.failed(begun.batch, self._clock(), self._jitter()):
            self._poison(begun.model_revision, poison)

    def _poison(self, model_revision: ModelRevision, item: WorkItem) -> None:
        request = request_of(item.waiters[0])
        assert request.text is not None, "A text has none. This is a bug."
        model_revision.dispatcher.retries.quarantine(request.text.prompt_ids)
        query = item.waiters[0]
        if not query.done:
            query.item = None
            if request.remaining and request.complete_input(0, _POISON):
                self._complete([request])

    def _abort(self, under_way: _UnderWay) -> None:
        under_way.begun.engine.abort(under_way)
        self._end(under_way)

    def _end(self, under_way: _UnderWay) -> None:
        """It holds nothing at its server any more; what was lost may have been given up since, and ended already."""
        if self._under_way.get(under_way.request) is not under_way:
            return
        del self._under_way[under_way.request]
        under_way.wait_until(inf)
        begun = under_way.begun
        begun.replica.finished()
        _observe(begun)
        self.goes_well(under_way)
        self._changed(begun.model_revision)

    def _done(self, begun: _Begun) -> None:
        """A batch waits for none of its texts any more."""
        begun.done = True
        now_s = self._clock()
        first_tokens_s = min(now_s, begun.first_tokens_s)
        load = begun.engine.load
        report = StepReport(
            step_tokens=begun.batch.token_count,
            step_duration_s=max(0.0, first_tokens_s - max(begun.batch.packed_s, begun.replica.first_tokens_s)),
            queued_tokens=0 if load is None else load.waiting_tokens,
            idle_before_s=0.0,
            staged_s=0.0,
        )
        begun.replica.first_tokens_s = first_tokens_s
        _observe(begun)
        begun.model_revision.dispatcher.done(begun.batch, report, now_s)
        self._changed(begun.model_revision)


@dataclass(slots=True, eq=False)
class _Begun:
    """A batch of prompts at a server, which is `done` once it is `waiting` for none of its texts.

    `first_tokens_s`: when the last of them had its first token that has one.
    """

    model_revision: ModelRevision
    engine: TextEngine
    batch: Batch
    replica: GeneratingReplica
    waiting: set[_UnderWay] = field(default_factory=set)
    first_tokens_s: float = inf
    done: bool = False
    error: BatchFailed | None = None


def _observe(begun: _Begun) -> None:
    """How the server stands now."""
    load = begun.engine.load
    if load is not None:
        begun.replica.observe_load(load.free_kv_tokens, load.running)


class _UnderWay:
    """One text at one server; a `replicas.engine.Sequence`."""

    __slots__ = ("_generating", "_timer", "begun", "had", "item", "request", "text")

    def __init__(self, generating: Generating, begun: _Begun, item: WorkItem, request: Request, text: Text) -> None:
        self.begun = begun
        self.item = item
        self.request = request
        self.text = text
        self.had = len(text.token_ids)
        self._generating = generating
        self._timer: asyncio.TimerHandle | None = None

    @property
    def gained(self) -> int:
        """New tokens that came from this server."""
        return len(self.text.token_ids) - self.had

    @property
    def token_ids(self) -> bytes:
        """What to go on from, int32 little endian."""
        return self.item.token_ids

    @property
    def sampling(self) -> Sampling:
        """How to draw the tokens that are missing."""
        asked = self.text.sampling
        room = self.begun.model_revision.description.max_input_tokens - len(self.token_ids) // _ID_BYTES
        given = {name: getattr(asked, name) for name in _COPIED if asked.HasField(name)}
        return Sampling(
            max_tokens=min(room, self.text.left_tokens or room),
            min_tokens=max(0, asked.min_tokens - self.had),
            stop_token_ids=asked.stop_token_ids,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            ignore_eos=asked.ignore_eos,
            **given,
        )

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], stripped: int) -> None:
        """New tokens came, the last `stripped` of them no text."""
        if self in self.begun.waiting:
            if not self.gained:
                self._generating.first_token(self)
            elif self.gained >= _GOES_WELL:
                self._generating.goes_well(self)
        if self.text.extend(token_ids, logprobs, stripped):
            self.begun.engine.abort(self)
            self._generating.finished(self)
        else:
            self.request.origin.progressed()

    def end(self, *, cut: bool) -> None:
        """Those were its last; for want of room if it was `cut`."""
        self.text.end(cut=cut)
        self._generating.finished(self)

    def fail(self, code: Code, message: str) -> None:
        """The server refused it, or its engine failed beneath it."""
        match code:
            case Code.INTERNAL:
                self._generating.lost(self, EngineFailed(message))
            case Code.UNAVAILABLE | Code.FAILED_PRECONDITION:
                self._generating.lost(self, ModelServerLost(message))
            case _:
                self._generating.finished(self, Failure(code, message))

    def lost(self, error: BatchFailed) -> None:
        """The server is gone."""
        self._generating.lost(self, error)

    def wait_until(self, deadline_s: float) -> None:
        """Expect it by then, and not by when it was expected before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_s < inf:
            delay_s = max(0.0, deadline_s - self._generating.now_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._generating.late, self)


def _expected_by_s(under_way: _UnderWay) -> float:
    """By when its text is to be complete; one that goes on has had its first token."""
    if under_way.text.token_ids:
        return under_way.request.deadline_s
    return min(under_way.request.deadline_s, under_way.text.first_token_by_s)


def _first_token_failure(under_way: _UnderWay) -> Failure:
    return _NO_FIRST_TOKEN if under_way.text.first_token_by_s < under_way.request.deadline_s else _LATE
