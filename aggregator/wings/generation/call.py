"""Generate on one model server: one call carries all running sequences, from the first one to the last."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import numpy as np

from aggregator.errors import BatchFailed, Code, ModelServerLost, ModelServerTimedOut
from aggregator.model_server import PRIORITIES, GenerationLoad, ServerDescription
from aggregator.observability.costs import NOBODY, REST, Costs
from aggregator.replicas.client import GrpcModelServer, ModelServerClient, failure_of, message_reader
from aggregator.scheduler.work_item import Priority
from aggregator.wings.generation.generation import logprobs_of
from aggregator.wings.generation.server import TASK, ServerSequence
from protos.generation.v1.generation_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, TokenLogprobs
from protos.modelserver.v1 import modelserver_pb2 as pb

_LOG = logging.getLogger(__name__)
_UINT32, _INT32, _FLOAT32, _FLOAT64 = np.dtype("<u4"), np.dtype("<i4"), np.dtype("<f4"), np.dtype("<f8")
_SILENT_S = 10.0
"""A server with running sequences reports every step; silence this long means that it hangs."""
_NUMBERS = 1 << 32  # a sequence's number is a uint32 in a step's message
_LAST_STEPS = 512  # the page reads twice a second: steps of a millisecond and more all fit
_KNOWN_CODES = frozenset(Code)

if TYPE_CHECKING:
    StreamStreamCall = grpc.aio.StreamStreamCall[pb.GenerateCommand, pb.GenerateStep]
else:
    StreamStreamCall = grpc.aio.StreamStreamCall


class GenerateCall:
    """The running sequences of one server."""

    def __init__(
        self,
        description: ServerDescription,
        open_call: Callable[[], StreamStreamCall],
        failure: Callable[..., BatchFailed],
        costs: Costs,
    ) -> None:
        self._last_steps: deque[GenerationLoad] = deque(maxlen=_LAST_STEPS)
        self.description = description
        self._open = open_call
        self._failure = failure
        self._costs = costs
        self._numbers = count(1)
        self._sequences: dict[int, ServerSequence] = {}
        self._named: dict[ServerSequence, int] = {}
        self._commands: asyncio.Queue[pb.GenerateCommand] | None = None
        self._silence: asyncio.Timeout | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def load(self) -> GenerationLoad | None:
        return self._last_steps[-1] if self._last_steps else None

    @property
    def last_steps(self) -> Sequence[GenerationLoad]:
        return self._last_steps

    def generate(self, sequence: ServerSequence) -> None:
        if not self._sequences and self._silence is not None and not self._silence.expired():
            self._silence.reschedule(asyncio.get_running_loop().time() + _SILENT_S)  # till now there was nothing to say
        number = next(self._numbers) % _NUMBERS
        self._sequences[number] = sequence
        self._named[sequence] = number
        start = pb.StartSequence(
            sequence=number,
            model=self.description.model,
            model_revision=self.description.model_revision,
            token_ids=sequence.token_ids,
            sampling=sequence.sampling,
            account=sequence.account,
            priority=PRIORITIES[sequence.priority],
        )
        self._send(pb.GenerateCommand(start=start))

    def abort(self, sequence: ServerSequence) -> None:
        number = self._named.pop(sequence, None)
        if number is not None:
            del self._sequences[number]
            self._send(pb.GenerateCommand(abort=number))

    async def probe(self, token_ids: bytes, *, timeout_s: float) -> None:
        """Have one token generated after these ids. Raises BatchFailed."""
        asked = _Probe(token_ids)
        self.generate(asked)
        try:
            async with asyncio.timeout(timeout_s):
                await asked.answered
        except TimeoutError:
            self.abort(asked)
            raise ModelServerLost(f"no token came within {timeout_s:g} s") from None

    def _send(self, command: pb.GenerateCommand) -> None:
        if self._commands is None:
            self._commands = asyncio.Queue()
            self._task = asyncio.create_task(self._carry(self._commands), name="generate")
        self._commands.put_nowait(command)

    async def _carry(self, commands: asyncio.Queue[pb.GenerateCommand]) -> None:
        call = self._open()
        writing = asyncio.create_task(_write(call, commands), name="generate: commands")
        error: BatchFailed = ModelServerLost("the connection was closed")
        try:
            while self._sequences or not commands.empty():
                async with asyncio.timeout(_SILENT_S) as self._silence:
                    step = await call.read()
                self._silence = None
                if not isinstance(step, pb.GenerateStep):
                    break  # the end of the call
                self.read(step)
        except TimeoutError:
            error = ModelServerTimedOut(f"it sent nothing for {_SILENT_S:g} s while sequences ran")
        except grpc.aio.AioRpcError as broken:
            error = self._failure(broken)
        except (grpc.aio.UsageError, asyncio.CancelledError):
            pass  # the channel was closed
        except ModelServerLost as bad:
            error = bad
        finally:
            writing.cancel()
            call.cancel()
            self._commands = self._task = self._silence = None
            lost, self._sequences, self._named = list(self._sequences.values()), {}, {}
            for sequence in lost:
                sequence.server_lost(error)

    def read(self, step: pb.GenerateStep) -> None:
        """Pass each sequence its new tokens. Raises ModelServerLost for an invalid message."""
        if not 0.0 <= step.step_duration_s < math.inf:
            raise ModelServerLost(f"the answer reports a time of {step.step_duration_s} s")
        if step.step_duration_s:
            load = GenerationLoad(
                step.free_kv_tokens,
                step.running,
                step.waiting_tokens,
                step.step_duration_s,
                step.embed_room_tokens if step.HasField("embed_room_tokens") else None,
                step.decoding_sequences,
                step.prompt_tokens,
                step.embedding_tokens,
                time.monotonic(),
            )
            self._last_steps.append(load)
        self._charge(step)
        self._extend(step, {each.sequence: each.stop_tokens for each in step.finished})
        for end in step.finished:
            sequence = self._sequences.pop(end.sequence, None)
            if sequence is None:
                continue
            del self._named[sequence]
            if not end.code:
                sequence.end(FINISH_REASON_LENGTH if end.length else FINISH_REASON_STOP)
            else:
                sequence.fail(Code(end.code) if end.code in _KNOWN_CODES else Code.INTERNAL, end.message)

    def _charge(self, step: pb.GenerateStep) -> None:
        """Charge each account its part of the steps' time. Raises ModelServerLost for invalid accounts or times."""
        if not 0.0 <= step.unclaimed_s < math.inf:
            raise ModelServerLost(f"the answer reports a time of {step.unclaimed_s} s")
        if step.unclaimed_s:
            self._costs.charge(self.description.model, TASK, NOBODY, step.unclaimed_s)
        if len(step.accounts) * 2 != len(step.account_seconds) or len(step.account_seconds) % _FLOAT64.itemsize:
            raise ModelServerLost("account ids and account_s differ in length")
        seconds = np.frombuffer(step.account_seconds, _FLOAT64)
        if not bool(np.isfinite(seconds).all() and (seconds >= 0.0).all()):
            raise ModelServerLost("the answer charges an account with a time that cannot be")
        for account, taken_s in zip(np.frombuffer(step.accounts, _UINT32).tolist(), seconds.tolist(), strict=True):
            self._costs.charge(self.description.model, TASK, account, taken_s)

    def _extend(self, step: pb.GenerateStep, stop_tokens: Mapping[int, int]) -> None:
        """Pass on new tokens. A sequence appears once per step; its last `stop_tokens` tokens are not text."""
        numbers, counts, token_ids = _unpacked(step, self.description.vocabulary_size)
        last = {number: place for place, number in enumerate(numbers)} if stop_tokens else {}
        logprobs: dict[int, deque[pb.SequenceLogprobs]] = {}
        for each in step.logprobs:
            logprobs.setdefault(each.sequence, deque()).append(each)
        first = 0
        for place, (number, size) in enumerate(zip(numbers, counts, strict=True)):
            own, first = token_ids[first : first + size], first + size
            sequence = self._sequences.get(number)
            if sequence is None:
                continue
            reported = _logprobs(logprobs[number].popleft(), size) if logprobs and logprobs.get(number) else ()
            if reported is None:
                self.abort(sequence)
                sequence.fail(Code.INTERNAL, "the log probabilities of its tokens are not numbers")
                continue
            ends = min(size, stop_tokens.get(number, 0)) if stop_tokens and last[number] == place else 0
            sequence.extend(own, reported, ends)


def _unpacked(step: pb.GenerateStep, vocabulary_size: int) -> tuple[list[int], list[int], list[int]]:
    """Sequence numbers, their counts of new tokens, and these tokens. Raises ModelServerLost if they do not fit."""
    if any(len(each) % _UINT32.itemsize for each in (step.sequences, step.counts, step.token_ids)):
        raise ModelServerLost("the answer's tokens are incomplete")
    numbers, counts = np.frombuffer(step.sequences, _UINT32).tolist(), np.frombuffer(step.counts, _UINT32).tolist()
    token_ids = np.frombuffer(step.token_ids, _INT32)
    if len(numbers) != len(counts) or sum(counts) != len(token_ids):
        raise ModelServerLost("token counts do not sum to the number of ids")
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocabulary_size:
        raise ModelServerLost("the answer holds a token outside the model's vocabulary")
    return numbers, counts, token_ids.tolist()


async def _write(call: StreamStreamCall, commands: asyncio.Queue[pb.GenerateCommand]) -> None:
    try:
        while True:
            await call.write(await commands.get())
    except (grpc.aio.BaseError, asyncio.InvalidStateError):
        return


def _logprobs(reported: pb.SequenceLogprobs, tokens: int) -> list[TokenLogprobs] | None:
    """None if they are not numbers. Raises ModelServerLost if they do not fit the tokens."""
    if any(len(each) % _INT32.itemsize for each in (reported.token_ids, reported.logprobs, reported.ranks)):
        raise ModelServerLost("the answer's log probabilities are incomplete")
    ids, values = np.frombuffer(reported.token_ids, _INT32), np.frombuffer(reported.logprobs, _FLOAT32)
    ranks = np.frombuffer(reported.ranks, _INT32)
    if len(ids) != len(values) or len(ids) != reported.width * tokens or len(ranks) != tokens:
        raise ModelServerLost("the answer's log probabilities do not fit its tokens")
    if (len(ids) and int(ids.min()) < 0) or (len(ranks) and int(ranks.min()) < 0):
        raise ModelServerLost("the answer's log probabilities are of negative tokens or ranks")
    if np.isnan(values).any():
        return None
    return logprobs_of(reported.width, ids.tolist(), values.tolist(), ranks.tolist())


class GeneratingModelServer(GenerateCall, GrpcModelServer):
    """A model server that was reached and generates; its call to generate is opened by its first sequence."""

    def __init__(self, client: ModelServerClient, description: ServerDescription) -> None:
        serialize: Callable[[pb.GenerateCommand], bytes] = pb.GenerateCommand.SerializeToString
        open_call = client.stream_stream("Generate", serialize, message_reader(pb.GenerateStep))
        GenerateCall.__init__(self, description, open_call, failure_of, client.costs)
        GrpcModelServer.__init__(self, client, description)


class _Probe:
    """One token, to check that a server answers."""

    sampling = pb.Sampling(max_tokens=1)
    account = REST
    priority = Priority.DEFAULT

    def __init__(self, token_ids: bytes) -> None:
        self.token_ids = token_ids
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], stop_tokens: int) -> None:
        """The token came; `end` follows."""

    def end(self, finish_reason: int) -> None:
        del finish_reason
        self._settle(None)

    def fail(self, code: Code, message: str) -> None:
        self._settle(ModelServerLost(f"{code.name}: {message}"))

    def server_lost(self, error: BatchFailed) -> None:
        self._settle(error)

    def _settle(self, error: BatchFailed | None) -> None:
        if self.answered.done():
            return
        if error is None:
            self.answered.set_result(None)
        else:
            self.answered.set_exception(error)
