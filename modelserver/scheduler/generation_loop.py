"""Drive one generating engine on a thread of its own: commands between two steps, one message a step to each caller."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue

import grpc
from typing_extensions import override

from modelserver.engines.engine import EngineFacts, Generator, GeneratorFactory, NewTokens
from modelserver.errors import EngineBroken
from modelserver.loop import EngineThread, StateEvent
from modelserver.scheduler.memory import MemoryLimit
from modelserver.scheduler.outbox import Outbox
from modelserver.scheduler.step_tokens import StepTokens
from protos.modelserver.v1 import modelserver_pb2 as pb

_log = logging.getLogger(__name__)

_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
_INTERNAL = grpc.StatusCode.INTERNAL.value[0]
_INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """One engine step, as it was; times in seconds."""

    new_tokens: int
    prompt_tokens: int
    sequences: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class GenerationEvents:
    """Told on the engine's thread."""

    on_state: StateEvent
    on_step: Callable[[GenerationStep], None]
    on_failed_step: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Start:
    """Generate after `token_ids`, all of them valid; whoever asks gets it by their `outbox`, under their number."""

    outbox: Outbox
    sequence: int
    token_ids: Sequence[int]
    sampling: pb.Sampling


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget a sequence."""

    outbox: Outbox
    sequence: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Forget every sequence of a caller."""

    outbox: Outbox


Command = Start | Abort | Leave
_Number = tuple[Outbox, int]


@dataclass(slots=True)
class _Steering:
    """What the next step may hold: by the time between tokens, and by memory where that is limited ahead."""

    step_tokens: StepTokens
    memory: MemoryLimit | None


class GenerationLoop(EngineThread[Generator]):
    """Sequences of all callers in one engine. `steering` makes the rules for an engine that was built."""

    def __init__(
        self,
        build: GeneratorFactory,
        steering: Callable[[EngineFacts], tuple[StepTokens, MemoryLimit | None]],
        events: GenerationEvents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(build, events.on_state, clock)
        self._make_steering = steering
        self._events = events
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._names = count()
        self._owners: dict[str, _Number] = {}
        self._named: dict[_Number, str] = {}
        self._callers: dict[Outbox, int] = {}
        self._lengths: dict[str, list[int]] = {}
        self._steering: _Steering | None = None
        self._closed = False

    @property
    def sequences(self) -> int:
        """Under way."""
        return len(self._owners)

    def do(self, command: Command) -> None:
        """Have it done before the next step. Any thread."""
        self._commands.put(command)

    def close(self) -> None:
        """Take no more sequences; those under way go on to their ends, then the thread ends."""
        self._commands.put(None)

    @override
    def _open(self, engine: Generator) -> None:
        self._steering = _Steering(*self._make_steering(engine.facts))

    @override
    def _steps(self, engine: Generator) -> None:
        while True:
            self._obey(engine, wait=not engine.has_work and not self._closed)
            if engine.has_work:
                self._step(engine)
            elif self._closed:
                return

    @override
    def _refuse_waiting(self, reason: str) -> None:
        self._fail_all(_UNAVAILABLE, reason)
        while (command := self._next_command(wait=False)) is not None:
            if isinstance(command, Start):
                _finish_at_once(command, _UNAVAILABLE, reason)

    def _obey(self, engine: Generator, *, wait: bool) -> None:
        """Do what came since the last step; wait for the first of it where there is nothing else to do."""
        while (command := self._next_command(wait=wait)) is not None:
            wait = False
            match command:
                case Start():
                    self._start(engine, command)
                case Abort(outbox, sequence):
                    self._abort(engine, [(outbox, sequence)])
                case Leave(outbox):
                    self._abort(engine, [number for number in self._named if number[0] is outbox])

    def _next_command(self, *, wait: bool) -> Command | None:
        try:
            command = self._commands.get(block=wait)
        except Empty:
            return None
        if command is None:
            self._closed = True
            return self._next_command(wait=False)
        return command

    def _start(self, engine: Generator, start: Start) -> None:
        if self._closed:
            _finish_at_once(start, _UNAVAILABLE, "the server is stopping")
            return
        name = str(next(self._names))
        try:
            engine.add(name, start.token_ids, start.sampling)
        except ValueError as error:
            _finish_at_once(start, _INVALID, str(error))
            return
        number = (start.outbox, start.sequence)
        self._owners[name] = number
        self._callers[start.outbox] = self._callers.get(start.outbox, 0) + 1
        self._named[number] = name
        self._lengths[name] = [len(start.token_ids), 0]

    def _abort(self, engine: Generator, numbers: Collection[_Number]) -> None:
        names = [name for number in numbers if (name := self._named.get(number)) is not None]
        if names:
            engine.abort(names)
            for name in names:
                self._forget(name)

    def _step(self, engine: Generator) -> None:
        steering = self._steering
        assert steering is not None, "An engine runs that was not opened. This is a bug."
        sequences = steering.step_tokens.sequences()
        if steering.memory is not None:
            sequences = min(sequences, steering.memory.sequences(engine.running))
        engine.limit(steering.step_tokens.tokens(engine.decoding), sequences)
        start_s = self._running_since_s = self._clock()
        try:
            new, load = engine.step()
        except Exception as error:  # noqa: BLE001 - engines raise anything; what follows depends on how it recovers
            self._fail(engine, error)
            return
        finally:
            self._running_since_s = None
        took_s = self._clock() - start_s
        steering.step_tokens.observe(load, took_s)
        self._deliver(engine, steering, new, took_s)
        new_tokens = sum(len(each.token_ids) for each in new)
        self._events.on_step(GenerationStep(new_tokens, load.prompt_tokens, len(new), took_s))

    def _deliver(self, engine: Generator, steering: _Steering, new: Sequence[NewTokens], took_s: float) -> None:
        told = list(self._callers)  # also those without a new token: silence would mean that the server hangs
        for each in new:
            number = self._owners.get(each.name)
            if number is None:
                continue
            outbox, sequence = number
            outbox.add(sequence, each.token_ids, each.logprobs)
            self._lengths[each.name][1] += len(each.token_ids)
            if each.finished:
                outbox.finish(pb.FinishedSequence(sequence=sequence, length=each.cut, stripped=each.stripped))
                if steering.memory is not None:
                    steering.memory.observe(*self._lengths[each.name])
                self._forget(each.name)
        if told:
            state = pb.GenerateStep(
                step_duration_s=took_s,
                free_kv_tokens=engine.free_kv_tokens,
                running=engine.running,
                waiting_tokens=engine.waiting_tokens,
            )
            for outbox in told:
                outbox.end_step(state)

    def _fail(self, engine: Generator, error: Exception) -> None:
        """Nobody knows which sequence it was: their callers find out. Raises EngineBroken when the engine is."""
        _log.warning("a step failed", extra={"sequences": len(self._owners), "error": type(error).__name__})
        self._events.on_failed_step()
        self._fail_all(_INTERNAL, f"the engine failed: {type(error).__name__}")
        if isinstance(error, EngineBroken):
            raise error
        engine.recover()

    def _fail_all(self, code: int, reason: str) -> None:
        failed = list(self._owners.items())
        for name, (outbox, sequence) in failed:
            self._forget(name)
            outbox.finish(pb.FinishedSequence(sequence=sequence, code=code, message=reason))
        for outbox in dict.fromkeys(outbox for _, (outbox, _) in failed):
            outbox.end_step(pb.GenerateStep())

    def _forget(self, name: str) -> None:
        number = self._owners.pop(name)
        del self._named[number], self._lengths[name]
        outbox = number[0]
        self._callers[outbox] -= 1
        if not self._callers[outbox]:
            del self._callers[outbox]


def _finish_at_once(start: Start, code: int, reason: str) -> None:
    start.outbox.finish(pb.FinishedSequence(sequence=start.sequence, code=code, message=reason))
    start.outbox.end_step(pb.GenerateStep())
