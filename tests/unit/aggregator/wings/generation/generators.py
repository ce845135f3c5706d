"""Fake servers that generate, and embed too where they say so, behind a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf

from aggregator.errors import BatchFailed, EngineFailed
from aggregator.model_server import ServerDescription
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Priority
from aggregator.sources.calls.calls import call_of
from aggregator.sources.wire.message import parse
from aggregator.wings.generation.costs import GenerationCosts
from aggregator.wings.generation.generation import generation_of
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.server import ServerSequence
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.fake_source import GRPC
from tests.support.fake_tokenizer import FakeTokenizer, Letters
from tests.support.faked_pipeline import DESCRIPTION, MODEL, FakedPipeline
from tests.support.records import record_at

COSTS = GenerationCosts(fixed_s=0.002, per_sequence_s=0.0001, per_token_s=1e-5, kv_tokens=4096, max_sequences=8)
GENERATES = replace(DESCRIPTION, details=COSTS, dimensions=0, matryoshka_dimensions=frozenset(), max_input_tokens=512)
POISON = 2013
BOTH = replace(DESCRIPTION, beside=GENERATES)


@dataclass(eq=False)
class FakeGenerator(FakeEngine):
    """Generates ids 1, 2, 3, … at one a millisecond, and embeds if it describes that; `fatal` ids end it."""

    fatal: frozenset[int] = frozenset()
    running: dict[ServerSequence, asyncio.Task[None]] = field(default_factory=dict[ServerSequence, asyncio.Task[None]])

    def generate(self, sequence: ServerSequence) -> None:
        self.running[sequence] = asyncio.create_task(self._generate(sequence))

    def abort(self, sequence: ServerSequence) -> None:
        task = self.running.pop(sequence, None)
        if task is not None:
            task.cancel()

    async def probe(self, token_ids: bytes, *, timeout_s: float) -> None:
        await asyncio.sleep(0.001)
        assert not any(fatal.to_bytes(4, "little") in token_ids for fatal in self.fatal), timeout_s

    async def _generate(self, sequence: ServerSequence) -> None:
        for token_id in range(1, sequence.sampling.max_tokens + 1):
            await asyncio.sleep(0.001)
            if any(fatal.to_bytes(4, "little") in sequence.token_ids for fatal in self.fatal):
                self.fail(EngineFailed("the engine fell over"))
                return
            sequence.extend([token_id], (), 0)
        del self.running[sequence]
        sequence.end(pb.FINISH_REASON_LENGTH)

    def fail(self, error: BatchFailed) -> None:
        """End every sequence that runs."""
        running, self.running = self.running, {}
        for sequence, task in running.items():
            if task is not asyncio.current_task():
                task.cancel()
            sequence.server_lost(error)


class Words(FakeTokenizer):
    """Has a detokenizer, too."""

    def detokenizer(self, token_ids: bytes) -> Letters:
        del token_ids
        return Letters()


def server(address: str, description: ServerDescription = BOTH, **changes: object) -> FakeGenerator:
    beside = None if description.beside is None else replace(description.beside, address=address)
    described = replace(description, address=address, instance_id=address, beside=beside)
    return FakeGenerator(described, **changes)  # type: ignore[arg-type]  # as the test says


def asked(faked: FakedPipeline, prompt: str = "1 2", max_tokens: int = 5, source: object = GRPC) -> Request:
    """A request to generate, as a call or a record."""
    called = source is GRPC
    mine = faked.grpc if called else faked.kafka
    defaults = Defaults(mine, MODEL, Priority.DEFAULT)
    origin = faked.request("x").origin if called else faked.committed_offset.deliver(record_at(10_000))
    message = pb.GenerateRequest(prompt=prompt, sampling=pb.Sampling(max_tokens=max_tokens))
    now_s = asyncio.get_running_loop().time()
    return parse(GENERATION, message, defaults, origin, received_s=now_s, wall_s=0.0, deadline_s=inf)


async def generated(faked: FakedPipeline, prompt: str = "1 2", max_tokens: int = 5) -> Request:
    """Call for a generation, and wait for its end."""
    request = asked(faked, prompt, max_tokens)
    faked.grpc.batcher.add(request)
    await call_of(request).wait()
    return request


def tokens(request: Request) -> list[int]:
    return list(generation_of(request).token_ids)


@asynccontextmanager
async def faked_of(*engines: FakeEngine, both: bool = False) -> AsyncGenerator[FakedPipeline]:
    faked = FakedPipeline(*engines, max_held_tokens=1_000_000)
    faked.pool.tokenizer = Words()
    for side in faked.pipeline.models:
        side.both = both
    async with faked.started():
        yield faked
