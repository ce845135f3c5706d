"""A model whose servers embed, generate, or do both: each request finds a server of its task, and each fails apart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aggregator.admission.models import OTHER_TASK_S
from aggregator.errors import Code, ModelServerLost
from aggregator.scheduler.work_item import Task
from aggregator.sources.calls.calls import call_of
from aggregator.wings.both.replica import MixedReplica
from aggregator.wings.generation.generation import generation_of
from aggregator.wings.generation.replica import GeneratingReplica
from tests.support.faked_pipeline import DESCRIPTION, MODEL, vectors
from tests.support.virtual_time import in_virtual_time
from tests.unit.aggregator.wings.generation.generators import (
    GENERATES,
    POISON,
    Words,
    asked,
    faked_of,
    generated,
    server,
    tokens,
)


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
