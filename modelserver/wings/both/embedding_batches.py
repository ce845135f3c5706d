"""The batches of embeddings that share the steps of an engine that also generates.

A batch enters the engine query by query as steps have room, and is answered when its last vector is computed. A batch
that is isolated runs in a separate step, for which the running generations wait: if it makes the engine fail, no
generation and no other batch is harmed.

A step is divided between decoding sequences, embeddings and prompts by the policy *floor*. Every decoding sequence gets
its token. Of the rest, a quarter is kept for waiting prompts, which a flood of embeddings would otherwise starve, and
embeddings take what they need of the other three. Tokens that one side does not need go to the other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from typing_extensions import override

from modelserver.engines.engine import EngineFacts, Matrix
from modelserver.errors import ModelServerError, NotServing, StepFailed
from modelserver.scheduler.queued_batch import Answer, Composition, QueuedBatch, StepReport, Unclaimed
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.batch import broken_rows
from modelserver.wings.both.generator import Embeds
from modelserver.wings.generation.generator import EngineLoad, Generator, NewTokens, StepLoad
from modelserver.wings.generation.sharing import SharedSteps

_log = logging.getLogger(__name__)

_PROMPT_DIVISOR = 4
"""Prompts that wait keep one part in four of what decoding leaves."""


def embed_room(step_tokens: int, load: EngineLoad) -> int:
    """Tokens of embeddings in a step of `step_tokens`, those in the engine included."""
    left = max(0, step_tokens - load.decoding)
    return left - min(load.prefill_tokens, left // _PROMPT_DIVISOR)


class StepComposition:
    """The next step of at most `step_tokens`, while embeddings enter it; `seats`: how many may.

    An embedding that does not fit waits for a step that holds it whole. Only if the engine holds no other one, it is
    cut into parts.
    """

    def __init__(self, step_tokens: int, load: EngineLoad, seats: int) -> None:
        self._load = load
        self._left = max(0, step_tokens - load.decoding)
        self._room = embed_room(step_tokens, load)
        self._most = self._room
        self._held = sum(load.embeddings)
        self._entered: list[int] = []
        self._seats = seats
        self._first = not load.embeddings

    def admits(self, tokens: int, most_tokens: int) -> bool:
        """Whether an embedding may enter, whose sender allows `most_tokens` of embeddings in its step."""
        free = min(self._most, most_tokens) - self._held - sum(self._entered)
        return self._seats > 0 and free > 0 and (tokens <= free or self._first)

    def enter(self, tokens: int, most_tokens: int) -> None:
        """An embedding that is admitted enters."""
        self._most = min(self._most, most_tokens)
        self._entered.append(tokens)
        self._seats -= 1
        self._first = False

    @property
    def prompt_part(self) -> int:
        """The most tokens of one prompt or embedding in the step; 0: all of them.

        vLLM computes sequences in the order of their start, and waiting ones last. The parts are so small that
        every decoding sequence and the part of the prompts that wait find room behind them.
        """
        load = self._load
        kept = max(0, self._left - self._room - sum(load.begun))
        part = _part((*load.begun, *load.embeddings, *self._entered), self._left - kept)
        if self._entered and self._entered[0] > self._most:  # of its sender's budget
            return min(part or self._most, self._most)
        return part


def _part(tokens_left: Sequence[int], room: int) -> int:
    """The largest part of each that all together fit the room; 0: they fit whole. At least 1, so that none stops."""
    if sum(tokens_left) <= room:
        return 0
    rest = sorted(tokens_left)
    for place, tokens in enumerate(rest):
        share = room // (len(rest) - place)
        if tokens > share:
            return max(1, share)
        room -= tokens
    return 0


@dataclass(slots=True, eq=False)
class _RunningBatch:
    """A batch with at least one query in the engine; `names` are those of its queries there, with their rows.

    `tokens`, `duration_s` and `decoding` are of the steps since its first query entered, `engine_s` its part.
    """

    queued: QueuedBatch
    matrix: Matrix
    waiting: deque[tuple[int, list[int]]]
    started_s: float
    idle_before_s: float
    names: dict[str, int] = field(default_factory=dict[str, int])
    tokens: int = 0
    duration_s: float = 0.0
    decoding: int = 0
    engine_s: float = 0.0

    @property
    def next_tokens(self) -> int:
        return len(self.waiting[0][1])

    @property
    def done(self) -> bool:
        return not self.waiting and not self.names


class EmbeddingBatches(SharedSteps):
    """Takes queries from `queue` into the steps of one engine."""

    def __init__(
        self,
        queue: StepQueue,
        bounds: Callable[[EngineFacts], QueueBounds],
        on_step: Callable[[StepReport], None],
        on_failed_step: Callable[[Composition, float], None],
        *,
        unclaimed: Unclaimed | None = None,
    ) -> None:
        """`on_step` and `on_failed_step` are called on the engine's thread."""
        self._queue = queue
        self._bounds = bounds
        self._on_step = on_step
        self._on_failed_step = on_failed_step
        self._unclaimed = unclaimed or Unclaimed()
        self._numbers = count()
        self._running: list[_RunningBatch] = []
        self._owners: dict[str, _RunningBatch] = {}
        self._capacity = 0
        self._seats = 0
        self._dimensions = 0
        self._room = 0
        self._paused = False
        self._gives_zeros = False
        self._now_s = self._idle_s = 0.0
        self._embed: Callable[[str, Sequence[int]], None]
        self.failures = 0

    @property
    @override
    def has_work(self) -> bool:
        return bool(self._running) or self._queue.queued_tokens > 0

    @property
    @override
    def isolated(self) -> bool:
        return bool(self._running) and self._running[0].queued.isolated

    @property
    @override
    def running(self) -> bool:
        return bool(self._owners)

    @property
    @override
    def room_tokens(self) -> int:
        """Tokens of embeddings that would have fitted the last step."""
        return self._room

    @override
    def open(self, engine: Generator, wake: Callable[[], None]) -> None:
        """Accept batches from now on; `wake` is called on any thread when one comes."""
        assert isinstance(engine, Embeds), "This engine does not embed, but is to. This is a bug."
        facts, self._embed = engine.facts, engine.embed
        self._capacity, self._seats = facts.step_token_capacity, facts.step_query_capacity
        self._dimensions, self._gives_zeros = facts.dimensions, facts.gives_zeros
        self.failures = 0
        self._queue.open(self._bounds(facts), wake)

    @override
    def begin_step(self, engine: Generator, now_s: float, idle_s: float) -> None:
        """Abort the queries of batches whose callers have given up; `idle_s`: idle time before the step."""
        self._now_s, self._idle_s = now_s, idle_s
        for batch in [each for each in self._running if not each.queued.wanted(now_s)]:
            engine.abort(list(batch.names))
            self._forget(batch)

    @override
    def step_tokens(self, engine: Generator, load: EngineLoad, wanted: int) -> int:
        """As much as fits while no generation waits for its next token."""
        return wanted if load.decoding or load.prefill_tokens else engine.facts.step_token_capacity

    @override
    def compose(self, engine: Generator, load: EngineLoad, step_tokens: int, sequences: int) -> None:
        """Let queries enter the engine, and limit its next step's tokens and generations."""
        self._room = embed_room(step_tokens, load)
        # Between two isolated batches, the generations that wait for them get a step.
        may_pause = not (self._paused and (load.decoding or load.prefill_tokens))
        if may_pause and not self._running and (queued := self._queue.poll(lambda head: head.isolated)) is not None:
            self._begin(queued)
        self._paused = self.isolated
        if self.isolated:
            engine.preempt()
            while self._running[0].waiting:
                self._enter(self._running[0])
            engine.limit(self._capacity, 0)
            return
        step = StepComposition(step_tokens, load, self._seats - len(self._owners))
        while (batch := self._next(step)) is not None:
            step.enter(batch.next_tokens, batch.queued.max_step_tokens)
            self._enter(batch)
        engine.limit(step_tokens, sequences, step.prompt_part)

    @override
    def deliver(self, new: Sequence[NewTokens], load: StepLoad, duration_s: float) -> None:
        """Give batches their vectors; `new`: the embeddings that the step finished."""
        if not self._owners:
            return
        step_batches = dict.fromkeys(self._owners.values())
        composition = self._label(len(step_batches), load)
        for batch in step_batches:
            batch.tokens += load.prefill_tokens + load.embedding_tokens
            batch.duration_s += duration_s
            batch.decoding = max(batch.decoding, load.decoding)
        for name, share_s in load.shares_s(duration_s).items():
            if (owner := self._owners.get(name)) is not None:
                owner.engine_s += share_s
        for each in new:
            self._place(each)
        self._count(new, composition)
        self._on_step(
            StepReport(load.embedding_tokens, len(new), len(step_batches), composition, duration_s, self._idle_s)
        )
        for batch in [each for each in self._running if each.done]:
            self._running.remove(batch)
            report = StepReport(
                tokens=batch.tokens,
                queries=len(batch.matrix),
                batches=len(step_batches),
                composition=composition,
                duration_s=batch.duration_s,
                idle_before_s=batch.idle_before_s,
                decoding=batch.decoding,
                embed_room_tokens=self._room,
            )
            waited_s = max(0.0, batch.started_s - batch.queued.ready_s)  # it may come while its step is composed
            broken = broken_rows(batch.matrix, zeros=self._gives_zeros)
            batch.queued.deliver(Answer(batch.matrix, report, waited_s, batch.engine_s, broken))

    @override
    def fail_isolated(self, engine: Generator, error: Exception, duration_s: float) -> None:
        """Report the failure of an isolated batch; the generations that waited for it run again.

        Raises EngineBroken.
        """
        batch = self._running[0]
        self._on_failed_step(Composition.ISOLATED, duration_s)
        engine.discard(list(batch.names))
        self._forget(batch)
        batch.queued.deliver(StepFailed(f"the engine failed: {type(error).__name__}: {error}"))

    @override
    def fail(self, error: Exception, broken: ModelServerError | None, now_s: float) -> None:
        """A step failed: report an isolated batch, and run the others again, each isolated.

        If the engine is `broken`, they run elsewhere.
        """
        batches = self._running
        isolated = self.isolated
        self._running, self._owners = [], {}
        self._unclaimed.add(sum(each.engine_s for each in batches))
        if isolated:
            self._on_failed_step(Composition.ISOLATED, 0.0)
            batches[0].queued.deliver(StepFailed(f"the engine failed: {type(error).__name__}: {error}"))
        elif broken is not None:
            for each in batches:
                each.queued.deliver(broken)
        elif batches:
            self._queue.put_back_isolated([each.queued for each in batches], now_s)

    @override
    def refuse(self, reason: str) -> None:
        for queued in [each.queued for each in self._running] + list(self._queue.drain()):
            queued.deliver(NotServing(reason))
        self._running, self._owners = [], {}

    def _next(self, step: StepComposition) -> _RunningBatch | None:
        """The batch whose next query enters the step: one that has entered in part, unless a more urgent one waits.

        Of those that do not fit, the most urgent one waits for the next step, and no other goes before it.
        """
        entered = [batch for batch in self._running if batch.waiting]
        last = min(entered, key=lambda batch: batch.queued.priority, default=None)
        blocked = False

        def may_run(head: QueuedBatch) -> bool:
            nonlocal blocked
            if head.isolated or (last is not None and last.queued.priority <= head.priority):
                return False
            blocked = not step.admits(int(head.batch.lengths[0]), head.max_step_tokens)
            return not blocked

        queued = self._queue.poll(may_run)
        if queued is not None:
            return self._begin(queued)
        if last is None or blocked or not step.admits(last.next_tokens, last.queued.max_step_tokens):
            return None
        return last

    def _begin(self, queued: QueuedBatch) -> _RunningBatch:
        ends = np.cumsum(queued.batch.lengths)[:-1]
        ids = [part.tolist() for part in np.split(queued.batch.token_ids, ends)]
        matrix = np.zeros((queued.query_count, self._dimensions), np.float32)
        batch = _RunningBatch(queued, matrix, deque(enumerate(ids)), self._now_s, self._idle_s)
        self._running.append(batch)
        return batch

    def _enter(self, batch: _RunningBatch) -> None:
        row, ids = batch.waiting.popleft()
        name = f"embedding {next(self._numbers)}"
        self._embed(name, ids)
        batch.names[name] = row
        self._owners[name] = batch

    def _count(self, new: Sequence[NewTokens], composition: Composition) -> None:
        """Count a step that finished embeddings, none of them with a vector that is a result, as failed."""
        if not new:
            return
        missing = np.full(self._dimensions, np.nan, np.float32)
        matrix = np.stack([missing if each.vector is None else each.vector for each in new])
        broken = broken_rows(matrix, zeros=self._gives_zeros)
        if broken is None:
            self.failures = 0
            return
        rows = int(broken.sum())
        _log.warning("rows of a step are broken", extra={"rows": rows, "of": broken.size})
        if rows == broken.size:
            if not (self.isolated and self.failures):  # an isolated batch has failed before: as in `GenerationSteps`
                self.failures += 1
            self._on_failed_step(composition, 0.0)

    def _place(self, new: NewTokens) -> None:
        batch = self._owners.pop(new.name, None)
        if batch is None:
            return
        row = batch.names.pop(new.name)
        batch.matrix[row] = np.nan if new.vector is None else new.vector

    def _forget(self, batch: _RunningBatch) -> None:
        self._running.remove(batch)
        self._unclaimed.add(batch.engine_s)
        for name in batch.names:
            del self._owners[name]

    def _label(self, batches: int, load: StepLoad) -> Composition:
        if self.isolated:
            return Composition.ISOLATED
        if load.decoding or load.prefill_tokens:
            return Composition.MIXED
        return Composition.MERGED if batches > 1 else Composition.SINGLE
