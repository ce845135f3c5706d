"""The steps of a model that generates: apply commands between two steps, send each caller one message a step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue

import grpc

from modelserver.engines.engine import EngineFacts, Generator, NewTokens
from modelserver.errors import EngineBroken
from modelserver.scheduler.memory import MemoryLimit
from modelserver.scheduler.outbox import Outbox
from modelserver.scheduler.step_tokens import StepTokens
from protos.modelserver.v1 import modelserver_pb2 as pb

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """The report of one engine step."""

    new_tokens: int
    prompt_tokens: int
    sequences: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Generate after `token_ids`, all of them valid; the caller gets it through `outbox`, under its own number."""

    outbox: Outbox
    sequence: int
    token_ids: Sequence[int]
    sampling: pb.Sampling


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort a sequence."""

    outbox: Outbox
    sequence: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Abort every sequence of a caller."""

    outbox: Outbox


Command = Start | Abort | Leave


@dataclass(slots=True)
class _Sequence:
    """A sequence in the engine; `number` is its caller's."""

    outbox: Outbox
    number: int
    prompt_tokens: int
    new_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the next step may hold: by the time between tokens, and by memory if that is limited in advance."""

    step_tokens: StepTokens
    memory: MemoryLimit | None

    def apply(self, engine: Generator) -> None:
        """Limit the engine's next step."""
        sequences = self.step_tokens.sequences()
        if self.memory is not None:
            sequences = min(sequences, self.memory.sequences(engine.running))
        engine.limit(self.step_tokens.tokens(engine.decoding), sequences)


class GenerationSteps:
    """The sequences of all callers in one engine. `make_limits` makes the limits for an engine that was built."""

    def __init__(
        self,
        make_limits: Callable[[EngineFacts], StepLimits],
        on_step: Callable[[GenerationStep], None],
        on_failed_step: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_step` and `on_failed_step` are called on the engine's thread."""
        self._make_limits = make_limits
        self._on_step = on_step
        self._on_failed_step = on_failed_step
        self._clock = clock
        self._limits: StepLimits | None = None
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._names = count()
        self._sequences: dict[str, _Sequence] = {}
        self._closed = False

    @property
    def sequences(self) -> int:
        """Sequences that are not finished."""
        return len(self._sequences)

    def do(self, command: Command) -> None:
        """Have it done before the next step. Any thread."""
        self._commands.put(command)

    def close(self) -> None:
        """Start no more sequences; the started ones run to their ends. Any thread."""
        self._commands.put(None)

    def open(self, engine: Generator) -> None:
        """Start sequences from now on."""
        self._limits = self._make_limits(engine.facts)

    def wait(self, engine: Generator) -> bool:
        """Apply the commands since the last step, and wait for one if there is nothing else to do."""
        while (command := self._next_command(wait=not engine.has_work and not self._closed)) is not None:
            self._apply(engine, command)
        return engine.has_work

    def run(self, engine: Generator) -> None:
        """Run one step. Raises EngineBroken."""
        limits = self._limits
        assert limits is not None, "An engine runs that was not opened. This is a bug."
        limits.apply(engine)
        start_s = self._clock()
        try:
            new, load = engine.step()
        except Exception as error:  # noqa: BLE001 - engines raise anything; what follows depends on how it recovers
            self._fail(engine, error)
            return
        duration_s = self._clock() - start_s
        limits.step_tokens.observe(load, duration_s)
        self._deliver(engine, limits, new, duration_s)
        new_tokens = sum(len(each.token_ids) for each in new)
        self._on_step(GenerationStep(new_tokens, load.prompt_tokens, len(new), duration_s))

    def refuse(self, reason: str) -> None:
        """Finish every sequence, and those that wait to be started."""
        self._finish_all(grpc.StatusCode.UNAVAILABLE, reason)
        while (command := self._next_command(wait=False)) is not None:
            if isinstance(command, Start):
                _refuse(command, grpc.StatusCode.UNAVAILABLE, reason)

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
                self._abort(engine, lambda each: each.outbox is outbox)

    def _start(self, engine: Generator, start: Start) -> None:
        if self._closed:
            _refuse(start, grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            return
        name = str(next(self._names))
        try:
            engine.add(name, start.token_ids, start.sampling)
        except ValueError as error:
            _refuse(start, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        self._sequences[name] = _Sequence(start.outbox, start.sequence, len(start.token_ids))

    def _abort(self, engine: Generator, chosen: Callable[[_Sequence], bool]) -> None:
        names = [name for name, sequence in self._sequences.items() if chosen(sequence)]
        if names:
            engine.abort(names)
            for name in names:
                del self._sequences[name]

    def _deliver(self, engine: Generator, limits: StepLimits, new: Sequence[NewTokens], duration_s: float) -> None:
        # Callers without a new token get the step as well: no message would mean that the server hangs.
        callers = dict.fromkeys(sequence.outbox for sequence in self._sequences.values())
        for each in new:
            sequence = self._sequences.get(each.name)
            if sequence is None:
                continue
            sequence.outbox.add(sequence.number, each.token_ids, each.logprobs)
            sequence.new_tokens += len(each.token_ids)
            if each.finished:
                sequence.outbox.finish(
                    pb.FinishedSequence(sequence=sequence.number, length=each.cut, stripped=each.stripped)
                )
                if limits.memory is not None:
                    limits.memory.observe(sequence.prompt_tokens, sequence.new_tokens)
                del self._sequences[each.name]
        state = pb.GenerateStep(
            step_duration_s=duration_s,
            free_kv_tokens=engine.free_kv_tokens,
            running=engine.running,
            waiting_tokens=engine.waiting_tokens,
        )
        for outbox in callers:
            outbox.end_step(state)

    def _fail(self, engine: Generator, error: Exception) -> None:
        """Finish all: which sequence caused it is unknown. Raises EngineBroken."""
        _log.warning("a step failed", extra={"sequences": self.sequences, "error": type(error).__name__})
        self._on_failed_step()
        self._finish_all(grpc.StatusCode.INTERNAL, f"the engine failed: {type(error).__name__}")
        if isinstance(error, EngineBroken):
            raise error
        engine.recover()

    def _finish_all(self, code: grpc.StatusCode, reason: str) -> None:
        failed, self._sequences = self._sequences.values(), {}
        for sequence in failed:
            sequence.outbox.finish(pb.FinishedSequence(sequence=sequence.number, code=code.value[0], message=reason))
        for outbox in dict.fromkeys(sequence.outbox for sequence in failed):
            outbox.end_step(pb.GenerateStep())


def _refuse(start: Start, code: grpc.StatusCode, reason: str) -> None:
    start.outbox.finish(pb.FinishedSequence(sequence=start.sequence, code=code.value[0], message=reason))
    start.outbox.end_step(pb.GenerateStep())
