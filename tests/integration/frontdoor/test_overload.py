"""Overload is refused with a word on when to come again, long before memory grows."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import grpc
import psutil
import pytest

from aggregator import app
from aggregator.admission.models import CALLS_WAIT_S
from aggregator.admission.quotas import QuotaPolicy
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.listening import Listening, ask, listening, retry_delay_s, slow_engine
from tests.support.until import until

FULL = "word " * 50
MIB = 1024 * 1024


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return caught.value


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
        errors = [await refusal(door.stub.Embed(ask(*[FULL] * 6))) for _ in range(20)]
        delays = [retry_delay_s(error) for error in errors]
        assert all(delay is not None and 0 < delay <= 10 for delay in delays)
        assert len(set(delays)) > 10  # jittered
        engine.gate.set()
        await asyncio.gather(*calls)


async def test_one_input_and_many_are_refused_alike_when_the_queue_is_full() -> None:
    engine = slow_engine()
    async with listening(engine, max_held_tokens=1000) as door:
        calls = await fill(door, engine, 18)
        one = await refusal(door.stub.Embed(ask(FULL)))
        many = await refusal(door.stub.Embed(ask(FULL, FULL)))
        assert one.details() == many.details()
        stream = [answer async for answer in door.stub.EmbedStream(iter([ask(FULL), ask(FULL, FULL)]))]
        assert [answer.status.code for answer in stream] == [8, 8]
        assert all(answer.status.retry_delay.ToTimedelta().total_seconds() > 0 for answer in stream)
        engine.gate.set()
        await asyncio.gather(*calls)


async def test_a_tenant_that_fills_its_share_leaves_room_for_others() -> None:
    engine = slow_engine()
    async with listening(engine, max_held_tokens=1000) as door:
        calls = await fill(door, engine, 15, "filler")
        error = await refusal(door.stub.Embed(ask(FULL, tenant="filler")))
        assert "share" in (error.details() or "")
        other = door.stub.Embed(ask(FULL), metadata=[("x-tenant", "other")])
        await until(lambda: door.held_tokens > 15 * 53)
        engine.gate.set()
        await asyncio.gather(*calls, other)


@pytest.mark.parametrize("limit", [{"max_calls": 6}, {"max_pending_bytes": 1600}])
async def test_calls_in_flight_are_limited_in_number_and_bytes(limit: dict[str, int]) -> None:
    engine = slow_engine()
    async with listening(engine, limits=limit) as door:
        calls = await fill(door, engine, 5)
        error = await refusal(door.stub.Embed(ask(FULL)))
        assert "in flight" in (error.details() or "")
        assert retry_delay_s(error)
        engine.gate.set()
        await asyncio.gather(*calls)
        await door.stub.Embed(ask(FULL))  # what has left makes room


async def test_a_rate_of_tokens_is_divided_among_the_ready_aggregators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "QuotaPolicy", partial(QuotaPolicy, burst_s=500.0))
    ready = 2
    settings = {"tenants": {"tokens_per_s": 2, "rates": {"big": 1e6}}}
    async with listening(settings=settings, ready_aggregators=lambda: ready) as door:
        for _ in range(9):
            await door.stub.Embed(ask(FULL, tenant="a"))
        error = await refusal(door.stub.Embed(ask(FULL, tenant="a")))
        assert "rate" in (error.details() or "")
        for _ in range(30):
            await door.stub.Embed(ask(FULL, tenant="big"))


async def test_a_message_or_metadata_too_large_is_refused() -> None:
    async with listening(limits={"max_message_bytes": 10_000, "max_metadata_bytes": 4_000}) as door:
        await refusal(door.stub.Embed(ask("x" * 20_000)))
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
    async with listening(engine, max_held_tokens=2000, limits={"max_pending_bytes": MIB}) as door:
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
        [model] = door.models.configured
        [model_revision] = door.models.in_service()
        [engine] = model_revision.engines.values()
        door.pipeline.leave(engine)
        assert model.unavailable_since_s is not None
        model.unavailable_since_s -= CALLS_WAIT_S
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await door.stub.Embed(ask("rain"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_delay_s(caught.value)
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


async def test_calls_above_a_connection_s_limit_wait_their_turn() -> None:
    async with listening(limits={"max_calls_per_connection": 16}) as door:
        assert await codes(door, callers=100, calls=5) == {"OK": 500}


async def test_a_burst_of_calls_is_answered_to_the_last() -> None:
    async with listening(limits={"max_calls_per_connection": 4096}) as door:
        assert await codes(door, callers=2500, calls=1) == {"OK": 2500}
