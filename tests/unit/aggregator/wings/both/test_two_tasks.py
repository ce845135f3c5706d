"""A model whose servers embed, generate, or do both: each request finds a server of its task, and each fails apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf

from aggregator.admission.models import OTHER_TASK_S
from aggregator.errors import BatchFailed, Code, EngineFailed, ModelServerLost
from aggregator.model_server import ServerDescription
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Priority, Task
from aggregator.sources.calls.calls import call_of
from aggregator.sources.wire.message import parse
from aggregator.wings.both.replica import MixedReplica
from aggregator.wings.generation.costs import GenerationCosts
from aggregator.wings.generation.generation import generation_of
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.replica import GeneratingReplica
from aggregator.wings.generation.server import ServerSequence
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.fake_source import GRPC
from tests.support.fake_tokenizer import FakeTokenizer, Letters
from tests.support.faked_pipeline import DESCRIPTION, MODEL, FakedPipeline, vectors
from tests.support.records import record_at
from tests.support.virtual_time import in_virtual_time

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


@in_virtual_time
async def test_one_server_of_both_tasks_answers_either_and_both_at_once() -> None:
    async with faked_of(server("s:1")) as faked:
        embedded, text = await asyncio.gather(faked.embed("7 8"), generated(faked))
        (embeds,) = faked.pipeline.models.find(MODEL).revisions.values()
        (generates,) = faked.pipeline.models.find(MODEL, Task.GENERATE).revisions.values()
        replica, prompts = embeds.dispatcher.replicas["s:1"], generates.dispatcher.replicas["s:1"]
    assert (embedded.code, text.code, tokens(text)) == (Code.OK, Code.OK, [1, 2, 3, 4, 5])
    assert isinstance(vectors(embedded)[0], list)
    assert isinstance(replica, MixedReplica)
    assert isinstance(prompts, GeneratingReplica)
    assert (replica.sibling, prompts.sibling) == (prompts, replica)


@in_virtual_time
async def test_a_task_that_no_server_does_is_refused() -> None:
    async with faked_of(server("s:1", DESCRIPTION)) as faked:
        refused = await generated(faked)
        assert (refused.code, "embeds and does not generate" in str(refused.failure)) == (Code.INVALID_ARGUMENT, True)
    async with faked_of(server("s:1", GENERATES)) as faked:
        refused = await faked.embed("1")
        assert "generates and does not embed" in str(refused.failure)


@in_virtual_time
async def test_what_waits_is_refused_while_only_the_other_task_has_a_server() -> None:
    async with faked_of() as faked:
        request = asked(faked)
        faked.grpc.batcher.add(request)
        await asyncio.sleep(0.01)
        assert request.remaining
        faked.pipeline.join(server("s:1", DESCRIPTION), Words())
        await asyncio.sleep(OTHER_TASK_S / 2)
        assert request.remaining
        await call_of(request).wait()
        assert request.code is Code.INVALID_ARGUMENT
        refused = await generated(faked)
        assert refused.code is Code.INVALID_ARGUMENT
        faked.pipeline.join(server("s:2", GENERATES), Words())
        assert (await generated(faked)).code is Code.OK


@in_virtual_time
async def test_a_model_takes_inputs_that_each_of_its_servers_takes() -> None:
    shorter = replace(DESCRIPTION, max_input_tokens=DESCRIPTION.max_input_tokens - 1)
    both = server("both:1", replace(shorter, beside=GENERATES))
    async with faked_of(server("embeds:1", DESCRIPTION)) as faked:
        (embeds,) = faked.pipeline.models.find(MODEL).revisions.values()
        longest = " ".join(["1"] * (DESCRIPTION.max_input_tokens - 2))  # the first and the last token are special
        assert (await faked.embed(longest)).code is Code.OK
        faked.pipeline.join(both, Words())
        refused = await faked.embed(longest)
        told = f"takes {shorter.max_input_tokens} tokens" in str(refused.failure)
        assert (refused.code, told) == (Code.OUT_OF_RANGE, True)
        assert set(embeds.servers) == {"embeds:1", "both:1"}
        faked.pipeline.leave(both)
        assert (await faked.embed(longest)).code is Code.OK


@in_virtual_time
async def test_a_task_of_a_model_configured_for_both_waits_for_its_first_server() -> None:
    async with faked_of(server("s:1", DESCRIPTION), both=True) as faked:
        asking = asyncio.create_task(generated(faked))
        await asyncio.sleep(1.0)
        assert not asking.done()
        faked.pipeline.join(server("s:2", GENERATES), Words())
        assert (await asking).code is Code.OK


@in_virtual_time
async def test_a_servers_tasks_leave_together_and_what_it_ran_is_taken_up_again() -> None:
    first, second = server("s:1"), server("s:2")
    async with faked_of(first) as faked:
        asking = [asyncio.create_task(generated(faked, max_tokens=200))]
        await asyncio.sleep(0.05)
        first.gate.clear()
        asking.append(asyncio.create_task(faked.embed("7 8")))
        await asyncio.sleep(0.005)
        assert first.batches
        faked.pipeline.join(second, Words())
        first.failures.append(ModelServerLost("gone"))
        first.gate.set()
        first.fail(ModelServerLost("gone"))
        text, embedded = await asyncio.gather(*asking)
    assert (text.code, embedded.code) == (Code.OK, Code.OK)
    assert (len(tokens(text)), generation_of(text).attempts) == (200, 1)
    assert faked.pool.suspects == [first] * len(faked.pool.suspects)
    assert second.batches


@in_virtual_time
async def test_a_poison_prompt_fails_alone_and_its_ids_still_embed() -> None:
    async with faked_of(server("s:1", fatal=frozenset({POISON})), server("s:2", fatal=frozenset({POISON}))) as faked:
        good = [generated(faked, f"{number} 2", 100) for number in range(1, 6)]
        queries = [faked.embed(f"{number} {POISON}") for number in range(1, 30)]
        poison, *others = await asyncio.gather(generated(faked, f"{POISON} 1"), *good, *queries)
        again = await generated(faked, f"{POISON} 1")
        same = await faked.embed(f"{POISON} 1")
    assert (poison.code, again.code, same.code) == (Code.INTERNAL, Code.INTERNAL, Code.OK)
    assert {request.code for request in others} == {Code.OK}
    assert {len(tokens(request)) for request in others[:5]} == {100}


@in_virtual_time
async def test_a_poison_query_fails_alone_and_its_ids_still_generate() -> None:
    async with faked_of(server("s:1", poison=frozenset({POISON})), server("s:2", poison=frozenset({POISON}))) as faked:
        good = [generated(faked, f"{number} {POISON}", 100) for number in range(1, 6)]
        queries = [faked.embed(f"{number} 1") for number in range(20, 50)]
        poison, *others = await asyncio.gather(faked.embed(f"{POISON}"), *good, *queries)
        again = await faked.embed(f"{POISON}")
    assert (poison.code, again.code) == (Code.INTERNAL, Code.INTERNAL)
    assert {request.code for request in others} == {Code.OK}
