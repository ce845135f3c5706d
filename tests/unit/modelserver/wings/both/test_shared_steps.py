"""Both queues of one server of both tasks, in virtual time: priorities, deadlines and tenants hold across its steps.

The aggregator's pipeline and the model server's steps are the production code; only the engine is synthetic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.errors import Code
from aggregator.model_server import GenerationLoad, OutgoingBatch, StepResult
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Priority
from aggregator.sources.calls.calls import call_of
from aggregator.sources.wire.message import parse
from aggregator.wings.generation.costs import GenerationCosts
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.server import ServerSequence
from modelserver.engines.engine import Task
from modelserver.engines.synthetic import synthetic_facts
from modelserver.scheduler.queued_batch import Answer, MergeLimits, Outcome, QueuedBatch
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.batch import decode_batch
from modelserver.wings.both.embedding_batches import EmbeddingBatches
from modelserver.wings.both.synthetic import SyntheticMixedGenerator
from modelserver.wings.generation.outbox import Outbox
from modelserver.wings.generation.step_limits import StepCost, StepLimits, StepTokens
from modelserver.wings.generation.steps import GenerationSteps, Start
from protos.generation.v1 import generation_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2
from tests.support.fake_engine import FakeEngine
from tests.support.fake_source import GRPC, KAFKA
from tests.support.faked_pipeline import DESCRIPTION, MODEL, FakedPipeline
from tests.support.virtual_time import in_virtual_time
from tests.unit.aggregator.wings.generation.generators import Words

FIXED_S, PER_TOKEN_S, BETWEEN_S = 0.01, 1e-4, 0.05
STEP_S = 0.8 * BETWEEN_S
"""A step at most, while sequences decode."""
CAPACITY, SEQUENCES, CONTEXT = 1000, 16, 128
_COSTS = GenerationCosts(FIXED_S, PER_TOKEN_S, PER_TOKEN_S, 100_000, SEQUENCES)
_CURVE = Curve(0.0, FIXED_S, PER_TOKEN_S, 300, Rule.THROUGHPUT, CAPACITY)
_EMBEDS = replace(DESCRIPTION, max_input_tokens=CONTEXT - 1, step_token_capacity=CAPACITY, curve=_CURVE)
_GENERATES = replace(_EMBEDS, details=_COSTS, dimensions=0, matryoshka_dimensions=frozenset(), max_input_tokens=CONTEXT)


class SharedSteps(FakeEngine):
    """A model server of both tasks, whose steps take virtual time."""

    def __init__(self) -> None:
        super().__init__(replace(_EMBEDS, beside=_GENERATES))
        self.seen: list[bytes] = []
        self._took_s = 0.0
        self._ready: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._sequences: dict[int, ServerSequence] = {}
        facts = synthetic_facts(
            dimensions=4,
            max_input_tokens=CONTEXT - 1,
            vocabulary_size=100_000,
            step_tokens=CAPACITY,
            step_queries=300,
        )
        self._facts = replace(
            facts, tasks=frozenset(Task), context_tokens=CONTEXT, max_sequences=SEQUENCES, kv_tokens=100_000
        )
        self._engine = SyntheticMixedGenerator(self._facts, FIXED_S, PER_TOKEN_S, sleep=self._take)
        self._queue = StepQueue(asyncio.get_running_loop().time)
        self._batches = EmbeddingBatches(
            self._queue,
            lambda _: QueueBounds(MergeLimits(CAPACITY, 300), 8 * CAPACITY),
            lambda _: None,
            lambda *_: None,
        )
        step_tokens = StepTokens(StepCost(FIXED_S, PER_TOKEN_S, PER_TOKEN_S), BETWEEN_S, CAPACITY, SEQUENCES)
        self._work = GenerationSteps(
            lambda _: StepLimits(step_tokens, None),
            lambda _: None,
            lambda _: None,
            asyncio.get_running_loop().time,
            self._batches,
        )
        self._work.open(self._engine)
        self._outbox = Outbox(lambda: self._ready.append(self._read))

    async def run(self) -> None:
        """Step after step; what a step computes is delivered at its end."""
        while True:
            if not (self._engine.has_work or self._batches.has_work):
                await self._news.wait()
            self._news.clear()
            self._work.wait(self._engine)
            self._took_s = 0.0
            self._work.execute(self._engine)
            await asyncio.sleep(self._took_s)
            ready, self._ready = self._ready, []
            for deliver in ready:
                deliver()

    async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
        self.batches.append(batch)
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        decoded = decode_batch(
            batch.token_ids,
            batch.lengths,
            isolated=batch.isolate,
            max_step_tokens=batch.max_step_tokens,
            facts=self._facts,
        )

        def deliver(outcome: Outcome) -> None:
            self._ready.append(lambda: None if answered.done() else answered.set_result(outcome))

        self._queue.put(QueuedBatch(decoded, deliver, asyncio.get_running_loop().time()))
        self._news.set()
        async with asyncio.timeout(timeout_s):
            answer = await answered
        assert isinstance(answer, Answer), answer
        step = answer.step
        report = StepReport(
            step.tokens,
            step.duration_s,
            self._queue.queued_tokens,
            step.idle_before_s,
            answer.staged_s,
            step.decoding,
            step.embed_room_tokens,
        )
        return StepResult(answer.matrix, (), report)

    def generate(self, sequence: ServerSequence) -> None:
        self.seen.append(sequence.token_ids)
        number = len(self.seen)
        self._sequences[number] = sequence
        ids = np.frombuffer(sequence.token_ids, "<i4").tolist()
        sampling = modelserver_pb2.Sampling(max_tokens=sequence.sampling.max_tokens)
        self._work.do(Start(self._outbox, number, ids, sampling))
        self._news.set()

    def abort(self, sequence: ServerSequence) -> None:
        self._sequences = {number: each for number, each in self._sequences.items() if each is not sequence}

    async def probe(self, token_ids: bytes, *, timeout_s: float) -> None:
        raise AssertionError((token_ids, timeout_s))

    def _take(self, seconds: float) -> None:
        self._took_s += seconds

    def _read(self) -> None:
        step = self._outbox.take()
        assert step is not None
        self.load = GenerationLoad(
            step.free_kv_tokens, step.running, step.waiting_tokens, step.step_duration_s, step.embed_room_tokens
        )
        self.last_steps = (self.load,)
        ids = iter(np.frombuffer(step.token_ids, "<i4").tolist())
        numbers, counts = np.frombuffer(step.sequences, "<u4"), np.frombuffer(step.counts, "<u4")
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            new = [next(ids) for _ in range(count)]
            if number in self._sequences:
                self._sequences[number].extend(new, (), 0)
        for finished in step.finished:
            assert not finished.code
            if (ended := self._sequences.pop(finished.sequence, None)) is not None:
                ended.end(pb.FINISH_REASON_LENGTH)


class BothTasks:
    """A pipeline before one such server."""

    def __init__(self, pipeline: FakedPipeline) -> None:
        self.pipeline = pipeline
        self._numbers = iter(range(10, 90_000))

    def prompt(self, tokens: int, *, called: bool = True) -> Request:
        """A prompt for 5 new tokens: an interactive call, or a background record."""
        now_s = asyncio.get_running_loop().time()
        source = self.pipeline.grpc if called else self.pipeline.kafka
        priority = Priority.INTERACTIVE if called else Priority.BACKGROUND
        origin = self.pipeline.request("x", source=GRPC if called else KAFKA).origin
        message = pb.GenerateRequest(prompt=self._text(tokens), sampling=pb.Sampling(max_tokens=5))
        defaults = Defaults(source, MODEL, priority)
        return parse(GENERATION, message, defaults, origin, received_s=now_s, wall_s=0.0, deadline_s=inf)

    def text(self, tokens: int, *, called: bool = True) -> Request:
        """A text to embed, in the same way."""
        wishes = {} if called else {"priority": 3}
        source = GRPC if called else KAFKA
        return self.pipeline.request(self._text(tokens), source=source, **wishes)

    async def answered_s(self, request: Request) -> float:
        """Call, and wait; the seconds that it took."""
        began_s = asyncio.get_running_loop().time()
        self.pipeline.grpc.batcher.add(request)
        await call_of(request).wait()
        return asyncio.get_running_loop().time() - began_s

    def _text(self, tokens: int) -> str:
        """No two are alike."""
        return f"{next(self._numbers)} " * (tokens - 2)


@asynccontextmanager
async def both() -> AsyncGenerator[BothTasks]:
    server = SharedSteps()
    pipeline = FakedPipeline(server, max_held_tokens=10_000_000)
    pipeline.pool.tokenizer = Words()
    async with pipeline.started():
        steps = asyncio.create_task(server.run())
        yield BothTasks(pipeline)
        steps.cancel()


EMBED_STEPS, PROMPT_STEPS = 6, 45
"""Of the background two batches of each task may be under way, and prompts keep a quarter of a step."""


tokens = st.integers(3, 60)
floods = st.tuples(st.lists(tokens, max_size=40), st.lists(tokens, max_size=12))
"""Repeated twenty times."""


@given(floods, st.lists(st.tuples(st.booleans(), tokens, st.floats(0.0, 0.1)), min_size=1, max_size=12))
@settings(max_examples=8)
@in_virtual_time
async def test_a_background_of_both_tasks_neither_delays_the_urgent_nor_starves(
    flood: tuple[list[int], list[int]], calls: list[tuple[bool, int, float]]
) -> None:
    async with both() as faked:
        background = [faked.text(size, called=False) for size in 20 * flood[0]]
        background += [faked.prompt(size, called=False) for size in 20 * flood[1]]
        faked.pipeline.produce(*background)
        for embeds, size, pause_s in calls:
            await asyncio.sleep(pause_s)
            request = faked.text(size) if embeds else faked.prompt(size)
            took_s = await faked.answered_s(request)
            assert request.code is Code.OK
            assert took_s <= STEP_S * (EMBED_STEPS if embeds else PROMPT_STEPS)
        async with asyncio.timeout(600.0):
            while any(request.remaining for request in background):  # noqa: ASYNC110 - requests call nobody
                await asyncio.sleep(0.1)
        assert {request.code for request in background} <= {Code.OK}
