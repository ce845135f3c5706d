"""Generate on one model server: one call carries all texts, opened with the first and kept while any is under way."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from itertools import count
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import numpy as np

from aggregator.errors import BatchFailed, Code, ModelServerLost
from aggregator.replicas.engine import GeneratingLoad, Sequence, ServerDescription, TextEngine
from aggregator.replicas.texts.text import logprobs_of
from protos.generation.v1.generation_pb2 import TokenLogprobs
from protos.modelserver.v1 import modelserver_pb2 as pb

_LOG = logging.getLogger(__name__)
_UINT32, _INT32, _FLOAT32 = np.dtype("<u4"), np.dtype("<i4"), np.dtype("<f4")
_SILENT_S = 10.0
"""A server that says nothing for so long while texts are under way hangs: it tells of every step."""
_NUMBERS = 1 << 32
_KNOWN_CODES = frozenset(Code)

if TYPE_CHECKING:
    StreamStreamCall = grpc.aio.StreamStreamCall[pb.GenerateCommand, pb.GenerateStep]
else:
    StreamStreamCall = grpc.aio.StreamStreamCall


class GenerateCall:
    """The texts under way on one server."""

    def __init__(
        self,
        description: ServerDescription,
        open_call: Callable[[], StreamStreamCall],
        failure: Callable[..., BatchFailed],
    ) -> None:
        """`failure` says what a call's status means for what it carried."""
        self.load: GeneratingLoad | None = None
        self._description = description
        self._open = open_call
        self._failure = failure
        self._numbers = count(1)
        self._sequences: dict[int, Sequence] = {}
        self._named: dict[Sequence, int] = {}
        self._commands: asyncio.Queue[pb.GenerateCommand] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, sequence: Sequence) -> None:
        """Ask for a text."""
        number = next(self._numbers) % _NUMBERS
        self._sequences[number] = sequence
        self._named[sequence] = number
        start = pb.StartSequence(
            sequence=number,
            model=self._description.model,
            model_revision=self._description.model_revision,
            token_ids=sequence.token_ids,
            sampling=sequence.sampling,
        )
        self._send(pb.GenerateCommand(start=start))

    def abort(self, sequence: Sequence) -> None:
        """Nobody wants it any more."""
        number = self._named.pop(sequence, None)
        if number is not None:
            del self._sequences[number]
            self._send(pb.GenerateCommand(abort=number))

    def close(self) -> None:
        """Hang up; what is under way hears that the server is gone."""
        if self._task is not None:
            self._task.cancel()

    def _send(self, command: pb.GenerateCommand) -> None:
        if self._commands is None:
            self._commands = asyncio.Queue()
            self._task = asyncio.create_task(self._carry(self._commands), name="generate")
        self._commands.put_nowait(command)

    async def _carry(self, commands: asyncio.Queue[pb.GenerateCommand]) -> None:
        """One call, until it breaks, or nothing is under way."""
        call = self._open()
        writing = asyncio.create_task(_write(call, commands), name="generate: commands")
        error: BatchFailed = ModelServerLost("the connection was closed")
        try:
            while self._sequences or not commands.empty():
                async with asyncio.timeout(_SILENT_S):
                    step = await call.read()
                if not isinstance(step, pb.GenerateStep):
                    break  # the end of the call
                self.take(step)
        except TimeoutError:
            error = ModelServerLost(f"it said nothing for {_SILENT_S:g} s while texts were under way")
        except grpc.aio.AioRpcError as broken:
            error = self._failure(broken)
        except (grpc.aio.UsageError, asyncio.CancelledError):
            pass  # the channel was closed
        except ModelServerLost as bad:
            error = bad
        finally:
            writing.cancel()
            call.cancel()
            self._commands = self._task = None
            lost, self._sequences, self._named = list(self._sequences.values()), {}, {}
            for sequence in lost:
                sequence.lost(error)

    def take(self, step: pb.GenerateStep) -> None:
        """Hand each text what is new of it. Raises ModelServerLost for a message that cannot be right."""
        if not 0.0 <= step.step_duration_s < math.inf:
            raise ModelServerLost(f"the answer reports a time of {step.step_duration_s} s")
        if step.step_duration_s:
            self.load = GeneratingLoad(step.free_kv_tokens, step.running, step.waiting_tokens, step.step_duration_s)
        self._extend(step, {each.sequence: each.stripped for each in step.finished})
        for end in step.finished:
            sequence = self._sequences.pop(end.sequence, None)
            if sequence is None:
                continue
            del self._named[sequence]
            if not end.code:
                sequence.end(cut=end.length)
            else:
                sequence.fail(Code(end.code) if end.code in _KNOWN_CODES else Code.INTERNAL, end.message)

    def _extend(self, step: pb.GenerateStep, stripped: Mapping[int, int]) -> None:
        """New tokens; a text of several steps stands there several times, and what is `stripped` is at its end."""
        numbers, counts, token_ids = _unpacked(step, self._description.vocabulary_size)
        last = {number: place for place, number in enumerate(numbers)} if stripped else {}
        logprobs: dict[int, deque[pb.SequenceLogprobs]] = {}
        for each in step.logprobs:
            logprobs.setdefault(each.sequence, deque()).append(each)
        first = 0
        for place, (number, size) in enumerate(zip(numbers, counts, strict=True)):
            own, first = token_ids[first : first + size], first + size
            sequence = self._sequences.get(number)
            if sequence is None:
                continue
            told = _logprobs(logprobs[number].popleft(), size) if logprobs and logprobs.get(number) else ()
            ends = min(size, stripped.get(number, 0)) if stripped and last[number] == place else 0
            sequence.extend(own, told, ends)


def _unpacked(step: pb.GenerateStep, vocabulary_size: int) -> tuple[list[int], list[int], list[int]]:
    """Texts, how many tokens each gained, and these. Raises ModelServerLost for what does not fit together."""
    if any(len(each) % _UINT32.itemsize for each in (step.sequences, step.counts, step.token_ids)):
        raise ModelServerLost("the answer's tokens are cut off")
    numbers, counts = np.frombuffer(step.sequences, _UINT32).tolist(), np.frombuffer(step.counts, _UINT32).tolist()
    token_ids = np.frombuffer(step.token_ids, _INT32)
    if len(numbers) != len(counts) or sum(counts) != len(token_ids):
        raise ModelServerLost("the answer's tokens do not add up")
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocabulary_size:
        raise ModelServerLost("the answer holds a token that the model does not have")
    return numbers, counts, token_ids.tolist()


async def _write(call: StreamStreamCall, commands: asyncio.Queue[pb.GenerateCommand]) -> None:
    """Send commands; that the call is over is found by its reader."""
    try:
        while True:
            await call.write(await commands.get())
    except (grpc.aio.BaseError, asyncio.InvalidStateError):
        return


def _logprobs(told: pb.SequenceLogprobs, tokens: int) -> list[TokenLogprobs]:
    """Raises ModelServerLost for what does not fit the tokens."""
    if any(len(each) % _INT32.itemsize for each in (told.token_ids, told.logprobs, told.ranks)):
        raise ModelServerLost("the answer's log probabilities are cut off")
    ids, values = np.frombuffer(told.token_ids, _INT32), np.frombuffer(told.logprobs, _FLOAT32)
    ranks = np.frombuffer(told.ranks, _INT32)
    if len(ids) != len(values) or len(ids) != told.width * tokens or len(ranks) != tokens:
        raise ModelServerLost("the answer's log probabilities do not fit its tokens")
    if (len(ids) and int(ids.min()) < 0) or (len(ranks) and int(ranks.min()) < 0):
        raise ModelServerLost("the answer's log probabilities are of tokens that cannot be")
    return logprobs_of(told.width, ids.tolist(), values.tolist(), ranks.tolist())


class _Probe:
    """One token, to see that a server answers."""

    sampling = pb.Sampling(max_tokens=1)

    def __init__(self, token_ids: bytes) -> None:
        self.token_ids = token_ids
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def extend(self, token_ids: Tokens[int], logprobs: Tokens[TokenLogprobs], stripped: int) -> None:
        """It answers."""

    def end(self, *, cut: bool) -> None:
        """It has answered."""
        del cut
        self._settle(None)

    def fail(self, code: Code, message: str) -> None:
        """It has refused."""
        self._settle(ModelServerLost(f"{code.name}: {message}"))

    def lost(self, error: BatchFailed) -> None:
        """It is gone."""
        self._settle(error)

    def _settle(self, error: BatchFailed | None) -> None:
        if self.answered.done():
            return
        if error is None:
            self.answered.set_result(None)
        else:
            self.answered.set_exception(error)


async def probe(engine: TextEngine, token_ids: bytes, timeout_s: float) -> None:
    """Have one token generated. Raises BatchFailed."""
    asked = _Probe(token_ids)
    engine.generate(asked)
    try:
        async with asyncio.timeout(timeout_s):
            await asked.answered
    except TimeoutError:
        engine.abort(asked)
        raise ModelServerLost(f"no token came within {timeout_s:g} s") from None
