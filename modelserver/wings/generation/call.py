"""Serve one Generate call: commands to the engine's thread, and one message a step back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np

from modelserver.errors import InvalidBatch, ModelServerError, TooLong, WrongModel
from modelserver.scheduler.queued_batch import Unclaimed
from modelserver.service.batch import WIRE_INT, known_priority
from modelserver.service.description import Description
from modelserver.wings.generation.outbox import Outbox
from modelserver.wings.generation.steps import Abort, GenerationSteps, Leave, Start
from protos.modelserver.v1 import modelserver_pb2 as pb

_Context = grpc.aio.ServicerContext[Any, Any]


async def generate(
    commands: AsyncIterator[pb.GenerateCommand],
    steps: GenerationSteps,
    description: Description,
    unclaimed: Unclaimed,
) -> AsyncIterator[pb.GenerateStep]:
    """The messages of the sequences that `commands` start, until the commands end and all sequences are finished.

    A refused sequence is finished at once. If the call is cancelled, all of its sequences are aborted.
    """
    event_loop = asyncio.get_running_loop()
    filled = asyncio.Event()
    outbox = Outbox(lambda: event_loop.call_soon_threadsafe(filled.set))
    call = _Call(steps, description, outbox)
    reading = asyncio.create_task(call.read(commands), name="commands")
    reading.add_done_callback(lambda _: filled.set())
    try:
        while not (reading.done() and not call.unfinished):
            await filled.wait()
            filled.clear()
            while (step := outbox.take()) is not None:
                call.unfinished.difference_update(each.sequence for each in step.finished)
                step.unclaimed_s = unclaimed.take()
                yield step
        await reading
    finally:
        reading.cancel()
        steps.do(Leave(outbox))


class GenerateCalls:
    """The calls of Generate, over the steps of one engine."""

    def __init__(self, steps: GenerationSteps) -> None:
        self._steps = steps

    def serve(
        self, commands: AsyncIterator[pb.GenerateCommand], description: Description, unclaimed: Unclaimed
    ) -> AsyncIterator[pb.GenerateStep]:
        return generate(commands, self._steps, description, unclaimed)

    def close(self) -> None:
        self._steps.close()


class _Call:
    """The sequences of one caller; `unfinished` are those whose end was not sent yet."""

    def __init__(self, steps: GenerationSteps, description: Description, outbox: Outbox) -> None:
        self.unfinished: set[int] = set()
        self._steps = steps
        self._description = description
        self._outbox = outbox

    async def read(self, commands: AsyncIterator[pb.GenerateCommand]) -> None:
        async for command in commands:
            if command.WhichOneof("command") == "start":
                self._start(command.start)
            else:
                self._steps.do(Abort(self._outbox, command.abort))
                self.unfinished.discard(command.abort)

    def _start(self, start: pb.StartSequence) -> None:
        if start.sequence in self.unfinished:
            return
        self.unfinished.add(start.sequence)
        try:
            token_ids = self._checked(start)
        except ModelServerError as error:
            code = error.code.value[0]
            self._outbox.finish(pb.FinishedSequence(sequence=start.sequence, code=code, message=str(error)))
            self._outbox.end_step(pb.GenerateStep())
        else:
            priority = known_priority(start.priority)
            self._steps.do(Start(self._outbox, start.sequence, token_ids, start.sampling, start.account, priority))

    def _checked(self, start: pb.StartSequence) -> list[int]:
        """The prompt's ids. Raises the caller's error for a start on which an engine would fail or never finish."""
        served, facts = self._description.message, self._description.facts
        if (start.model, start.model_revision) != (served.model, served.model_revision):
            raise WrongModel(f"the model served here is {served.model}, revision {served.model_revision}")
        if not start.token_ids or len(start.token_ids) % WIRE_INT.itemsize:
            raise InvalidBatch("the sequence has no prompt of whole int32 values")
        ids = np.frombuffer(start.token_ids, WIRE_INT)
        if ids.min() < 0 or ids.max() >= facts.vocabulary_size:
            raise InvalidBatch(f"a token id lies outside the vocabulary of {facts.vocabulary_size}")
        if any(token_id >= facts.vocabulary_size for token_id in start.sampling.stop_token_ids):
            # With min_tokens an engine would mask it in the logits, past their end: on a GPU that ends the process.
            raise InvalidBatch(f"a stop token id lies outside the vocabulary of {facts.vocabulary_size}")
        if not start.sampling.max_tokens:
            raise InvalidBatch("max_tokens is 0")
        if len(ids) >= facts.context_tokens:
            raise TooLong(f"{len(ids)} tokens leave no room in the model's context of {facts.context_tokens}")
        needed = min(len(ids) + start.sampling.max_tokens, facts.context_tokens)
        if needed > facts.kv_tokens:
            raise TooLong(f"{needed} tokens are more than the {facts.kv_tokens} that the KV cache holds")
        start.sampling.max_tokens = needed - len(ids)
        return [int(token_id) for token_id in ids.tolist()]
