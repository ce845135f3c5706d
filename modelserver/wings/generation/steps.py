"""The steps of a model that generates: apply commands between two steps, send each caller one message a step.

Other work may share the steps (`SharedSteps`): the queries of a model that also embeds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue

import grpc

from modelserver.engines.engine import EngineFacts
from modelserver.errors import EngineBroken
from modelserver.scheduler.queued_batch import Unclaimed
from modelserver.wings.generation.generator import Generator, NewTokens, StepLoad
from modelserver.wings.generation.outbox import Outbox
from modelserver.wings.generation.sharing import SharedSteps
from modelserver.wings.generation.step_limits import StepLimits
from protos.modelserver.v1 import modelserver_pb2 as pb

_TURN_S = 30.0
"""A sequence waits behind those of the next more urgent class that come up to so much later.

Sequences run for seconds to minutes, so those of a bulk job that wait here are often older than a second.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """The report of one engine step."""

    new_tokens: int
    prefill_tokens: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Generate after `token_ids`, all of them valid; the caller gets it through `outbox`, under its own number."""

    outbox: Outbox
    sequence: int
    token_ids: Sequence[int]
    sampling: pb.Sampling
    account: int = 0
    priority: pb.Priority = pb.PRIORITY_DEFAULT


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort a sequence."""

    outbox: Outbox
    sequence: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Abort every sequence of a caller."""

    outbox: Outbox


@dataclass(frozen=True, slots=True)
class Wake:
    """Look for work: some of `SharedSteps` waits."""


Command = Start | Abort | Leave | Wake


@dataclass(slots=True)
class _Sequence:
    """A sequence in the engine; `number` is its caller's."""

    outbox: Outbox
    number: int
    prompt_tokens: int
    account: int
    new_tokens: int = 0


class GenerationSteps:
    """The sequences of all callers in one engine. `make_limits` makes the limits for an engine that was built."""

    def __init__(
        self,
        make_limits: Callable[[EngineFacts], StepLimits],
        on_step: Callable[[GenerationStep], None],
        on_failed_step: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        shared: SharedSteps | None = None,
        *,
        unclaimed: Unclaimed | None = None,
    ) -> None:
        """`on_step` and `on_failed_step` are called on the engine's thread, the latter with a raising step's time.

        `shared`: the other work in these steps; None: there is none.
        """
        self._make_limits = make_limits
        self._on_step = on_step
        self._on_failed_step = on_failed_step
        self._clock = clock
        self._shared = shared or SharedSteps()
        self._unclaimed = unclaimed or Unclaimed()
        self._idle_since_s = 0.0
        self._limits: StepLimits | None = None
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._names = count()
        self._sequences: dict[str, _Sequence] = {}
        self._closed = False
        self._failures = 0

    @property
    def sequences(self) -> int:
        return len(self._sequences)

    @property
    def failures(self) -> int:
        """Consecutive failed steps: those that raised, and those of which nothing could be used."""
        return max(self._failures, self._shared.failures)

    def do(self, command: Command) -> None:
        """Apply it before the next step. Any thread."""
        self._commands.put(command)

    def close(self) -> None:
        """Start no further sequence; the started ones run to their ends. Any thread."""
        self._commands.put(None)

    def open(self, engine: Generator) -> None:
        self._limits = self._make_limits(engine.facts)
        self._failures = 0
        self._idle_since_s = self._clock()
        self._shared.open(engine, lambda: self.do(Wake()))

    def wait(self, engine: Generator) -> bool:
        """Apply the commands since the last step, and wait for one if the engine is idle."""
        while (command := self._next_command(wait=not self._has_work(engine) and not self._closed)) is not None:
            self._apply(engine, command)
        return self._has_work(engine)

    def execute(self, engine: Generator) -> None:
        limits = self._limits
        assert limits is not None, "An engine runs that was not opened. This is a bug."
        start_s = self._clock()
        self._limit(engine, limits, start_s)
        if not engine.has_work:  # nobody waits for the other work any more
            return
        try:
            new, load = engine.step()
        except Exception as error:  # noqa: BLE001 - engines raise anything; what follows depends on how it recovers
            self._fail(engine, error, self._clock() - start_s)
            return
        self._idle_since_s = self._clock()
        duration_s = self._idle_since_s - start_s
        limits.step_tokens.observe(load, duration_s)
        self._shared.deliver([each for each in new if each.name not in self._sequences], load, duration_s)
        new = [each for each in new if each.name in self._sequences]
        new = self._without_broken(engine, new)
        self._deliver(engine, limits, new, load, duration_s)
        if new or load.prefill_tokens:
            new_tokens = sum(len(each.token_ids) for each in new)
            self._on_step(GenerationStep(new_tokens, load.prefill_tokens, duration_s))

    def refuse(self, reason: str) -> None:
        """Finish every sequence, started or waiting."""
        self._shared.refuse(reason)
        self._finish_all(grpc.StatusCode.UNAVAILABLE, reason)
        while (command := self._next_command(wait=False)) is not None:
            if isinstance(command, Start):
                _refuse(command, grpc.StatusCode.UNAVAILABLE, reason)

    def _has_work(self, engine: Generator) -> bool:
        return engine.has_work or self._shared.has_work

    def _limit(self, engine: Generator, limits: StepLimits, now_s: float) -> None:
        """Limit the next step, and let the other work enter it."""
        sequences = limits.sequences(engine.running)
        self._shared.begin_step(engine, now_s, now_s - self._idle_since_s)
        load = engine.load
        step_tokens = self._shared.step_tokens(engine, load, limits.step_tokens.tokens(load.decoding))
        self._shared.compose(engine, load, step_tokens, sequences)

    def _next_command(self, *, wait: bool) -> Command | None:
        try:
            command = self._commands.get(block=wait)
        except Empty:
            return None
        if command is None:
            self._closed = True
            return self._next_command(wait=False)
        return command

    def _apply(self, engine: Generator, command: Command) -> None:
        match command:
            case Start():
                self._start(engine, command)
            case Abort(outbox, number):
                self._abort(engine, lambda each: each.outbox is outbox and each.number == number)
            case Leave(outbox):
                self._unclaimed.add(outbox.uncharged_s())
                self._abort(engine, lambda each: each.outbox is outbox)
            case Wake():
                pass

    def _start(self, engine: Generator, start: Start) -> None:
        if self._closed:
            _refuse(start, grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            return
        name = str(next(self._names))
        try:
            engine.add(name, start.token_ids, start.sampling, self._clock() + _TURN_S * start.priority)
        except ValueError as error:
            _refuse(start, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        except EngineBroken:
            raise
        except Exception as error:  # noqa: BLE001 - what one request asks for ends no other's
            _log.error("the engine cannot take a sequence", extra={"error": type(error).__name__})
            _refuse(start, grpc.StatusCode.INTERNAL, f"the engine cannot take the sequence: {type(error).__name__}")
            return
        self._sequences[name] = _Sequence(start.outbox, start.sequence, len(start.token_ids), start.account)

    def _abort(self, engine: Generator, chosen: Callable[[_Sequence], bool]) -> None:
        names = [name for name, sequence in self._sequences.items() if chosen(sequence)]
        if names:
            engine.abort(names)
            for name in names:
                del self._sequences[name]

    def _deliver(
        self, engine: Generator, limits: StepLimits, new: Sequence[NewTokens], load: StepLoad, duration_s: float
    ) -> None:
        # Callers without a new token get the step as well: no message would mean that the server hangs.
        callers = dict.fromkeys(sequence.outbox for sequence in self._sequences.values())
        for name, share_s in load.shares_s(duration_s).items():
            if (sequence := self._sequences.get(name)) is not None:
                sequence.outbox.charge(sequence.account, share_s)
        for each in new:
            sequence = self._sequences.get(each.name)
            if sequence is None:
                continue
            sequence.outbox.add(sequence.number, each.token_ids, each.logprobs)
            sequence.new_tokens += len(each.token_ids)
            if each.finished:
                sequence.outbox.finish(
                    pb.FinishedSequence(sequence=sequence.number, length=each.length, stop_tokens=each.stop_tokens)
                )
                if limits.memory is not None:
                    limits.memory.observe(sequence.prompt_tokens, sequence.new_tokens)
                del self._sequences[each.name]
        if not callers:
            return
        state = pb.GenerateStep(
            step_duration_s=duration_s,
            free_kv_tokens=engine.free_kv_tokens,
            running=engine.running,
            waiting_tokens=engine.load.prefill_tokens,
            embed_room_tokens=self._shared.room_tokens,
            decoding_sequences=load.decoding,
            prompt_tokens=load.prefill_tokens,
            embedding_tokens=load.embedding_tokens,
        )
        for outbox in callers:
            outbox.end_step(state)

    def _without_broken(self, engine: Generator, new: Sequence[NewTokens]) -> Sequence[NewTokens]:
        """The tokens that mean something; the sequences of the others fail, and their senders try them elsewhere."""
        broken = [each for each in new if each.broken]
        if len(broken) < len(new) or not new:
            self._failures = 0
        else:
            self._failures += 1
            self._on_failed_step(0.0)
        if not broken:
            return new
        _log.warning("tokens of a step are broken", extra={"sequences": len(broken), "of": len(new)})
        engine.abort([each.name for each in broken])
        failed = [self._sequences.pop(each.name) for each in broken]
        self._finish_each(failed, grpc.StatusCode.INTERNAL, "the engine's scores of the next token are not numbers")
        return [each for each in new if not each.broken]

    def _fail(self, engine: Generator, error: Exception, duration_s: float) -> None:
        """Finish all sequences: the one at fault is unknown, unless a batch was isolated. Raises EngineBroken."""
        shared = self._shared
        self._unclaimed.add(duration_s)
        _log.warning("a step failed", extra={"sequences": self.sequences, "error": type(error).__name__})
        if not (shared.isolated and self._failures):  # an isolated batch failed before: hardly the engine
            self._failures += 1
        if shared.isolated and self._sequences and not isinstance(error, EngineBroken):
            shared.fail_isolated(engine, error, duration_s)
            return
        self._on_failed_step(duration_s)
        # The cause in a mixed step may be the other work: a generation that fails so is no suspect.
        code = grpc.StatusCode.UNAVAILABLE if shared.running else grpc.StatusCode.INTERNAL
        self._finish_all(code, f"the engine failed: {type(error).__name__}")
        broken: EngineBroken | None = error if isinstance(error, EngineBroken) else None
        try:
            if broken is None:
                engine.recover()
        except EngineBroken as unrecovered:
            broken = unrecovered
        shared.fail(error, broken, self._clock())
        if broken is not None:
            raise broken

    def _finish_all(self, code: grpc.StatusCode, reason: str) -> None:
        failed, self._sequences = self._sequences.values(), {}
        self._finish_each(failed, code, reason)

    def _finish_each(self, failed: Collection[_Sequence], code: grpc.StatusCode, reason: str) -> None:
        for sequence in failed:
            sequence.outbox.finish(pb.FinishedSequence(sequence=sequence.number, code=code.value[0], message=reason))
        for outbox in dict.fromkeys(sequence.outbox for sequence in failed):
            outbox.end_step(pb.GenerateStep())


def _refuse(start: Start, code: grpc.StatusCode, reason: str) -> None:
    start.outbox.finish(pb.FinishedSequence(sequence=start.sequence, code=code.value[0], message=reason))
    start.outbox.end_step(pb.GenerateStep())
