"""Answer the model server's gRPC calls: batches, the description, the tokenizer's files."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import grpc
from typing_extensions import override

from modelserver.engines.engine import Task
from modelserver.errors import ModelServerError, NotServing, WrongModel, WrongTask
from modelserver.scheduler.queued_batch import Answer, Outcome, QueuedBatch, Unclaimed
from modelserver.scheduler.step_queue import StepQueue
from modelserver.service import batch as batches
from modelserver.service.description import Description
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc

_CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_CHUNK_BYTES = 1024 * 1024  # below gRPC's default limit of 4 MiB
_Context = grpc.aio.ServicerContext[Any, Any]
Metadata = Iterable[tuple[str, str | bytes]]
BatchSpan = Callable[[Metadata | None], AbstractContextManager[object]]
"""Opens the span of one batch, given its call's metadata; the wing `tracing` has one."""


def no_span(_: Metadata | None) -> AbstractContextManager[object]:
    """No span, where traces are not exported."""
    return nullcontext()


class SequenceCalls(Protocol):
    """The calls of Generate, which the wing `generation` serves."""

    def serve(
        self, commands: AsyncIterator[pb.GenerateCommand], description: Description, unclaimed: Unclaimed
    ) -> AsyncIterator[pb.GenerateStep]:
        """The messages of the sequences that `commands` start."""
        ...

    def close(self) -> None:
        """Start no further sequence; the started ones run to their ends."""
        ...


@dataclass(slots=True)
class Serving:
    """The queue of embeddings, the sequences, and the description: `description` is None until the engine is ready."""

    queue: StepQueue
    description: Description | None = None
    generation: SequenceCalls | None = None
    unclaimed: Unclaimed = field(default_factory=Unclaimed)


class ModelServerServicer(pb_grpc.ModelServerServicer):
    """The calls of `modelserver.v1.ModelServer`."""

    def __init__(
        self,
        serving: Serving,
        tokenizer: Mapping[str, bytes],
        on_refused: Callable[[grpc.StatusCode, int], None],
        batch_span: BatchSpan = no_span,
    ) -> None:
        """`on_refused` is called with the code of each refused or failed batch (count 0) and of each refused query.

        `tokenizer`: its files, name to content.
        """
        self._serving = serving
        self._tokenizer = tokenizer
        self._on_refused = on_refused
        self._batch_span = batch_span
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        await self._idle.wait()

    @override
    async def EmbedBatch(self, request: pb.EmbedBatchRequest, context: _Context) -> pb.EmbedBatchResponse:
        self._in_flight += 1
        self._idle.clear()
        try:
            with self._batch_span(context.invocation_metadata()):
                return await self._embed(request, context)
        except ModelServerError as error:
            await self._refuse(error, context)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    @override
    async def Generate(
        self, request_iterator: AsyncIterator[pb.GenerateCommand], context: _Context
    ) -> AsyncIterator[pb.GenerateStep]:
        """Run sequences for as long as the caller stays."""
        serving = self._serving
        if serving.description is None:
            await self._refuse(NotServing("the engine is not ready"), context)
        if serving.generation is None:
            await self._refuse(WrongTask("the model served here does not generate"), context)
        async for step in serving.generation.serve(request_iterator, serving.description, serving.unclaimed):
            yield step

    @override
    async def Describe(self, request: pb.DescribeRequest, context: _Context) -> pb.DescribeResponse:
        """The server's description; UNAVAILABLE until the engine is ready."""
        if self._serving.description is None:
            await self._refuse(NotServing("the engine is not ready"), context)
        return self._serving.description.message

    @override
    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: _Context
    ) -> AsyncIterator[pb.TokenizerChunk]:
        """The files in the order of names, each in chunks; an empty file is one chunk."""
        for name, data in sorted(self._tokenizer.items()):
            for start in range(0, max(1, len(data)), _CHUNK_BYTES):
                yield pb.TokenizerChunk(file_name=name, data=data[start : start + _CHUNK_BYTES])

    async def _embed(self, request: pb.EmbedBatchRequest, context: _Context) -> pb.EmbedBatchResponse:
        queue, description = self._serving.queue, self._serving.description
        if description is None:
            raise NotServing("the engine is not ready")
        if description.facts.tasks == frozenset((Task.GENERATE,)):
            raise WrongTask("the model served here only generates")
        _check_model(request, description)
        batch = batches.decode_batch(
            request.token_ids,
            request.lengths,
            request.second_segments,
            request.span_counts,
            request.spans,
            isolated=request.attempt > 0 or request.isolate,
            max_step_tokens=request.max_step_tokens,
            facts=description.facts,
        )
        for fault in batch.faults:
            self._on_refused(fault.code, 1)
        answer = None
        if batch.lengths.size:
            answer = await _executed(self._serving, batch, request, context.time_remaining())
        answered = _response(batch, answer, queue, description.facts.dimensions)
        if context.time_remaining() != 0.0:
            answered.unclaimed_s = self._serving.unclaimed.take()
        elif answer is not None:  # nobody reads this any more
            self._serving.unclaimed.add(answer.engine_s)
        for error in answered.errors[len(batch.faults) :]:
            self._on_refused(_CODES[error.code], 1)
        return answered

    async def _refuse(self, error: ModelServerError, context: _Context) -> NoReturn:
        self._on_refused(error.code, 0)
        await context.abort(error.code, str(error))


async def _executed(
    serving: Serving, batch: batches.Batch, request: pb.EmbedBatchRequest, remaining_s: float | None
) -> Answer:
    """Queue the batch and return its answer; raises its error. If cancelled, the batch leaves the queue.

    The time of an answer that comes too late for its caller is unclaimed.
    """
    queue, unclaimed = serving.queue, serving.unclaimed
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()

    def complete(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)
        elif isinstance(outcome, Answer):
            unclaimed.add(outcome.engine_s)

    def deliver(outcome: Outcome) -> None:
        loop.call_soon_threadsafe(complete, outcome)

    now_s = time.monotonic()
    deadline_s = math.inf if remaining_s is None else now_s + remaining_s
    priority = batches.known_priority(request.priority)
    queued = QueuedBatch(batch, deliver, now_s, deadline_s, priority, request.max_shared_tokens)
    queue.put(queued)
    try:
        outcome = await future
    except asyncio.CancelledError:
        queue.withdraw(queued)
        raise
    if isinstance(outcome, ModelServerError):
        raise outcome
    return outcome


def _check_model(request: pb.EmbedBatchRequest, description: Description) -> None:
    served = description.message
    if request.model != served.model:
        raise WrongModel(f"the model served here is {served.model}, not {request.model}")
    if request.model_revision != served.model_revision:
        raise WrongModel(f"the revision served here is {served.model_revision}, not {request.model_revision}")


def _response(batch: batches.Batch, answer: Answer | None, queue: StepQueue, dimensions: int) -> pb.EmbedBatchResponse:
    queued_tokens = queue.queued_tokens
    if answer is None:  # no query was fit for the engine
        errors = [_error(fault) for fault in batch.faults]
        zeros = bytes(batch.sent_row_count * dimensions * 4)
        return pb.EmbedBatchResponse(
            embeddings=zeros, dimensions=dimensions, errors=errors, queued_tokens=queued_tokens
        )
    embeddings, faults = batches.encode(batch, answer.matrix, answer.broken)
    return pb.EmbedBatchResponse(
        embeddings=embeddings,
        dimensions=dimensions,
        errors=[_error(fault) for fault in faults],
        step_tokens=answer.step.tokens,
        step_duration_s=answer.step.duration_s,
        queued_tokens=queued_tokens,
        idle_before_s=answer.step.idle_before_s,
        staged_s=answer.staged_s,
        decoding_sequences=answer.step.decoding,
        embed_room_tokens=answer.step.embed_room_tokens,
        engine_s=answer.engine_s,
        recent_priorities=[pb.Priority.Name(priority) for priority in queue.recent_priorities()],
    )


def _error(fault: batches.QueryFault) -> pb.QueryError:
    return pb.QueryError(index=fault.index, code=fault.code.value[0], message=fault.message)
