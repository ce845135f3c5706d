"""A pipeline with fakes all around it: engines that compute in virtual time, a Kafka side that only remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from typing_extensions import override

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.known_rows import KnownRows
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.models import Model, Models
from aggregator.admission.quotas import Quotas
from aggregator.model_server import PoolMembers, ServerDescription
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.pipeline.pipeline import Pipeline
from aggregator.registry import DEMAND, REPLICAS, RUNNERS
from aggregator.request import request as requests
from aggregator.request.request import Defaults, Failure, Receive, Request
from aggregator.request.vector import Vector
from aggregator.scheduler.budget import NewServiceLevel
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.work_item import Priority, Task
from aggregator.sources.calls.calls import Call, CallBatcher, call_of
from aggregator.sources.calls.load import Limits, Load
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.kafka.decode import RecordOrigin, ReplyRoute
from aggregator.sources.kafka.offsets import CommittedOffset
from aggregator.sources.wire.message import parse
from aggregator.tokenizers.counting import Counting
from aggregator.tokenizers.tokenizer import TokenBatch, Tokenizer
from k8s.pod.metrics_buffer import MetricsBuffer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_engine import FakeEngine, description
from tests.support.fake_pool import FakePool
from tests.support.fake_source import GRPC, KAFKA, FakeSource, kafka
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.records import record_at

MODEL = "test-model"
TO_REPLIES = ReplyRoute("replies", None, json=False, headers=())
CURVE = Curve(0.0, 0.002, 1e-5, 100, Rule.THROUGHPUT, 4096)
DESCRIPTION = description(
    address="server-1:1",
    model=MODEL,
    dimensions=4,
    matryoshka_dimensions=frozenset({2}),
    max_input_tokens=32,
    step_token_capacity=1000,
    step_query_capacity=300,
    vocabulary_size=100_000,
    normalizes=False,
    query_prompt="query ",
    curve=CURVE,
)


def new_engine(description: ServerDescription = DESCRIPTION, **changes: Any) -> FakeEngine:
    return FakeEngine(description, **changes)


class FakeCounting(Counting):
    """Counts at once; keeps the texts of each call, and whether they were called long."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.calls: list[list[str]] = []
        self.long: list[bool] = []

    @override
    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        self.calls.append([*texts])
        self.long.append(long)
        if any("uncountable" in text for text in texts):
            raise ValueError("cannot be tokenized")
        return self._tokenizer.count(texts)


class SlowCounting(FakeCounting):
    """Takes so long for each call, or only for those with long texts; `begun` calls."""

    def __init__(self, seconds: float, *, only_long: bool = False) -> None:
        super().__init__(FakeTokenizer())
        self.begun = 0
        self._seconds = seconds
        self._only_long = only_long

    @override
    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        self.begun += 1
        if long or not self._only_long:
            await asyncio.sleep(self._seconds)
        return await super().count(texts, long=long)


class FakeGrpc(FakeSource):
    """Callers who wait, batched as the real ones are."""

    def __init__(self, batcher: CallBatcher) -> None:
        super().__init__(requests.GRPC, refusable=True)
        self.batcher = batcher

    @property
    @override
    def receivers(self) -> Sequence[Receive]:
        return [self.batcher.receive]

    @override
    def receive_now(self) -> None:
        self.batcher.receive_now()

    @override
    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        for request in requests:
            call_of(request).complete(request)
        yield requests


class FakedPipeline:
    """One pipeline among fakes; use `started`."""

    def __init__(
        self,
        *engines: FakeEngine,
        max_held_tokens: int = 10_000,
        max_unavailable_s: float | None = None,
        service_level: NewServiceLevel | None = None,
        scales_to_zero: bool = False,
        known: Callable[[ServerDescription], KnownRows] | None = None,
        quotas: Quotas | None = None,
        **policy: Any,
    ) -> None:
        self.kafka = kafka()
        self.pool = FakePool(list(engines))
        self.model = Model(
            MODEL, ("alias",), Admission(AdmissionPolicy(max_held_tokens)), scales_to_zero=scales_to_zero
        )
        self.embeds = self.model.tasks[Task.EMBED]
        dispatch = replace(DispatchPolicy(), **policy)
        models = Models(
            [self.model], dispatch, None, FakeCounting, known=known, service_level=service_level, replicas=REPLICAS
        )
        self.metrics = Metrics(MetricsBuffer())
        self.pipeline = Pipeline(
            models,
            self.pool,
            self.metrics,
            Tracing(),
            limits=AdmissionLimits(quotas),
            max_unavailable_s=max_unavailable_s,
            runners=RUNNERS,
            demand=DEMAND,
            clock=lambda: asyncio.get_running_loop().time(),
            jitter=lambda: 0.5,
        )
        self.grpc = FakeGrpc(CallBatcher(models.next_due_s, lambda: asyncio.get_running_loop().time()))
        self.pipeline.sources += [self.kafka, self.grpc]
        self.committed_offset = CommittedOffset("requests", 0, 0)
        self._offset = 0
        self._load = Load(Limits(max_calls=100_000, max_streams=1), Metrics(MetricsBuffer()))

    @property
    def members(self) -> PoolMembers:
        """What the pool tells of servers that come and go, once it is started."""
        assert self.pool.members is not None
        return self.pool.members

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[FakedPipeline]:
        """The pipeline at work until the block ends."""
        async with asyncio.TaskGroup() as tasks:  # a pipeline that fails takes the test with it
            task = tasks.create_task(self.pipeline.run())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield self
            task.cancel()

    def request(
        self, *inputs: str | pb.Input, source: FakeSource = GRPC, in_s: float | None = None, **fields: Any
    ) -> Request:
        """A request of these texts or inputs; `in_s`: seconds until its deadline."""
        now_s = asyncio.get_running_loop().time()
        message = pb.EmbedRequest(
            inputs=[pb.Input(text=each) if isinstance(each, str) else each for each in inputs], **fields
        )
        called = source is GRPC
        mine = self.grpc if called else self.kafka
        defaults = Defaults(mine, MODEL, Priority.INTERACTIVE if called else Priority.DEFAULT)
        origin = Call(self._load.enter(("caller",))) if called else self._record()
        deadline_s = float("inf") if in_s is None else now_s + in_s
        return parse(EMBEDDING, message, defaults, origin, received_s=now_s, wall_s=0.0, deadline_s=deadline_s)

    def _record(self) -> RecordOrigin:
        self._offset += 1
        return RecordOrigin(self.committed_offset.deliver(record_at(self._offset)), TO_REPLIES)

    async def embed(self, *inputs: str | pb.Input, in_s: float | None = None, **fields: Any) -> Request:
        request = self.request(*inputs, in_s=in_s, **fields)
        self.grpc.batcher.add(request)
        try:
            await call_of(request).wait()
        except asyncio.CancelledError:
            self.pipeline.give_up(request)
            raise
        return request

    async def occupy(self) -> list[Request]:
        """Give the only engine a batch to run and one to stage, so that whatever comes next waits in the queue."""
        urgent = pb.PRIORITY_INTERACTIVE
        requests = [self.request(text, source=KAFKA, priority=urgent) for text in ("1", "2")]
        for request in requests:
            self.produce(request)
            await asyncio.sleep(0.005)
        return requests

    async def drain(self) -> None:
        for incoming in self.kafka.incoming:
            incoming.put_nowait(())
        self.grpc.batcher.close()
        await self.pipeline.drain()

    def produce(self, *requests: Request, large: bool = False) -> None:
        """Let requests arrive by Kafka, in one fetch."""
        self.kafka.incoming[large].put_nowait(requests)


def vectors(request: Request) -> list[list[float] | str]:
    """Each input's vector (float32 [4]), or the name of its failure's code."""
    found: list[list[float] | str] = []
    for outcome in request.outcomes:
        if isinstance(outcome, Vector):
            found.append(outcome.batch.matrix[outcome.row].tolist())
        else:
            assert isinstance(outcome, Failure)
            found.append(outcome.code.name)
    return found
