"""Overload is refused with a word on when to come again, long before memory grows."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import grpc
import psutil
import pytest

from aggregator.admission.models import CALLS_WAIT_S
from aggregator.scheduler.work_item import Task
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.listening import CURVE, DESCRIPTION, Listening, ask, listening, refused, retry_delay_s, slow_engine
from tests.support.until import until

FULL = "word " * 50
FULL_HOUSE = grpc.StatusCode.RESOURCE_EXHAUSTED
MIB = 1024 * 1024


async def fill(door: Listening, engine: FakeEngine, count: int, tenant: str = "") -> list[Any]:
    """Calls that stay under way while the engine's gate is closed."""
    engine.gate.clear()
    calls = [door.stub.Embed(ask(f"{FULL} {number}", tenant=tenant)) for number in range(count)]
    await until(lambda: door.held_tokens >= count * 53)
    return calls


async def test_a_full_queue_tells_when_to_come_again() -> None:
    engine = slow_engine()
    async with listening(engine, max_held_tokens=1000) as door:
        calls = await fill(door, engine, 14)
        errors = [await refused(door.stub.Embed(ask(*[FULL] * 6)), FULL_HOUSE) for _ in range(20)]
        delays = [retry_delay_s(error) for error in errors]
        assert all(delay is not None and 0 < delay <= 10 for delay in delays)
        assert len(set(delays)) > 10  # jittered
        engine.gate.set()
        await asyncio.gather(*calls)


async def test_one_input_and_many_are_refused_alike_when_the_queue_is_full() -> None:
    engine = slow_engine()
    async with listening(engine, max_held_tokens=1000) as door:
        calls = await fill(door, engine, 18)
        one = await refused(door.stub.Embed(ask(FULL)), FULL_HOUSE)
        many = await refused(door.stub.Embed(ask(FULL, FULL)), FULL_HOUSE)
        assert one.details() == many.details()
        stream = [answer async for answer in door.stub.EmbedStream(iter([ask(FULL), ask(FULL, FULL)]))]
        assert [answer.status.code for answer in stream] == [8, 8]
        assert all(answer.status.retry_delay.ToTimedelta().total_seconds() > 0 for answer in stream)
        engine.gate.set()
        await asyncio.gather(*calls)


async def test_a_message_or_metadata_too_large_is_refused() -> None:
    async with listening(limits={"max_message_bytes": 10_000, "max_metadata_bytes": 4_000}) as door:
        await refused(door.stub.Embed(ask("x" * 20_000)), FULL_HOUSE)
        with pytest.raises(grpc.aio.AioRpcError):
            await door.stub.Embed(ask("x"), metadata=[("x-large", "x" * 8_000)])
        await door.stub.Embed(ask("x"))


async def test_a_connection_is_renewed_at_its_age_and_no_call_is_lost() -> None:
    async with listening(limits={"connection_age_s": 0.2}) as door:
        seen: set[grpc.ChannelConnectivity] = set()

        async def watch() -> None:
            while True:
                state = door.channel.get_state()
                seen.add(state)
                await door.channel.wait_for_state_change(state)

        watching = asyncio.create_task(watch())
        end_s = asyncio.get_running_loop().time() + 1.0
        async with asyncio.timeout(30):
            while asyncio.get_running_loop().time() < end_s or grpc.ChannelConnectivity.IDLE not in seen:
                await door.stub.Embed(ask("rain"), wait_for_ready=True)
        watching.cancel()


async def test_memory_stays_flat_in_a_flood() -> None:
    engine = slow_engine()
    process = psutil.Process()
    text = "word " * 60
    async with listening(engine, max_held_tokens=2000, memory_bytes=MIB) as door:
        engine.gate.clear()
        refused = 0

        async def flood(rounds: int) -> None:
            nonlocal refused
            for _ in range(rounds):
                try:
                    await door.stub.Embed(ask(*[text] * 20, truncate="TRUNCATE_END"), timeout=60)
                except grpc.aio.AioRpcError as error:
                    refused += error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        waiting = [asyncio.create_task(flood(10_000)) for _ in range(2)]  # these fill the queue
        await until(lambda: door.held_tokens >= 1200)
        await asyncio.gather(*(flood(10) for _ in range(32)))
        before = process.memory_info().rss
        await asyncio.gather(*(flood(40) for _ in range(32)))
        grown = process.memory_info().rss - before
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert refused >= 1500
    assert grown < 16 * MIB  # 1,280 calls of 6 KiB of text and 20 vectors each


async def test_a_model_that_has_long_been_unavailable_is_told_at_once() -> None:
    async with listening() as door:
        [model] = door.models
        served = model.tasks[Task.EMBED]
        [model_revision] = door.models.in_service()
        [engine] = model_revision.servers.values()
        door.pipeline.leave(engine)
        assert served.unavailable_since_s is not None
        served.unavailable_since_s -= CALLS_WAIT_S
        assert retry_delay_s(await refused(door.stub.Embed(ask("rain")), grpc.StatusCode.UNAVAILABLE))
        answers = [
            answer async for answer in door.stub.EmbedStream(iter([pb.EmbedRequest(inputs=[pb.Input(text="a")])]))
        ]
        assert answers[0].status.code == 14


async def codes(door: Listening, callers: int, calls: int) -> Counter[str]:
    """What becomes of so many callers' calls, each of them one after the other, all on one connection."""
    found = Counter[str]()

    async def call_on() -> None:
        for _ in range(calls):
            try:
                await door.stub.Embed(ask("rain"))
                found["OK"] += 1
            except grpc.aio.AioRpcError as error:
                found[error.code().name] += 1

    await asyncio.gather(*(call_on() for _ in range(callers)))
    return found


@pytest.mark.parametrize(("limit", "callers", "calls"), [(16, 100, 5), (4096, 300, 1)], ids=["queued", "a burst"])
async def test_calls_above_a_connection_s_limit_wait_their_turn(limit: int, callers: int, calls: int) -> None:
    async with listening(limits={"max_calls_per_connection": limit}) as door:
        assert await codes(door, callers, calls) == {"OK": callers * calls}


async def test_what_the_predicted_batch_time_makes_late_is_refused_at_once() -> None:
    steep = replace(CURVE, per_token_s=0.1)  # a word takes 0.3 s, a call of 52 tokens 5.2 s
    engine = slow_engine(replace(DESCRIPTION, curve=steep), slowness=1.0)
    async with listening(engine) as door:
        await door.stub.Embed(ask("rain"))  # now there is evidence
        error = await refused(door.stub.Embed(ask(FULL), timeout=4.0), grpc.StatusCode.DEADLINE_EXCEEDED)
        assert "cannot be met" in (error.details() or "")
        await door.stub.Embed(ask("snow"), timeout=30.0)
    assert engine.queries == 2
