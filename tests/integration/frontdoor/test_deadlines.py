"""A call that nobody waits for, or that cannot be in time, never reaches the engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from aggregator.request.request import Request
from aggregator.sources.calls.calls import Calls
from tests.support.listening import CURVE, DESCRIPTION, ask, listening, slow_engine
from tests.support.until import until

FULL = "word " * 50


async def code_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_a_cancelled_call_leaves_the_queue() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        engine.gate.clear()
        calls = [door.stub.Embed(ask(f"{FULL} {number}")) for number in range(60)]
        await until(lambda: len(engine.batches) == 2 and len(door.models.in_service()[0].dispatcher.queue) > 30)
        sent = engine.queries
        for call in calls:
            call.cancel()
        await until(lambda: not door.held_tokens)
        assert not len(door.models.in_service()[0].dispatcher.queue)
        engine.gate.set()
        await door.stub.Embed(ask("next"))
    assert engine.queries <= sent + 1


async def test_a_call_cancelled_while_its_tokens_are_counted_is_never_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        [model_revision] = door.models.in_service()
        counting, go_on = model_revision.counting, asyncio.Event()
        asked: list[str] = []
        given_up: list[Request] = []
        give_up = Calls.give_up

        class Held:
            async def count(self, texts: Any, *, long: bool = False) -> Any:
                asked.extend(texts)
                await go_on.wait()
                return await counting.count(texts, long=long)

        def noted(calls: Calls, request: Request) -> None:
            give_up(calls, request)
            given_up.append(request)

        monkeypatch.setattr(model_revision, "counting", Held())
        monkeypatch.setattr(Calls, "give_up", noted)
        call = door.stub.Embed(ask("gone"))
        await until(lambda: asked)
        other = door.stub.Embed(ask("stays"))
        call.cancel()
        await until(lambda: given_up)
        go_on.set()
        assert len((await other).embeddings) == 1
        await until(lambda: not door.held_tokens)
    assert engine.queries == 1


async def test_a_calls_own_deadline_governs() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        engine.gate.clear()
        first = door.stub.Embed(ask(FULL))
        await until(lambda: engine.queries)
        expiring = [door.stub.Embed(ask(f"{FULL} {number}"), timeout=0.2) for number in range(40)]
        assert {await code_of(call) for call in expiring} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        await until(lambda: door.held_tokens < 60)
        sent = engine.queries
        engine.gate.set()
        await first
        await door.stub.Embed(ask("next"))
    assert engine.queries <= sent + 1


async def test_what_the_predicted_batch_time_makes_late_is_refused_at_once() -> None:
    steep = replace(CURVE, per_token_s=0.1)  # a word takes 0.3 s, a call of 52 tokens 5.2 s
    engine = slow_engine(replace(DESCRIPTION, curve=steep), slowness=1.0)
    async with listening(engine) as door:
        await door.stub.Embed(ask("rain"))  # now there is evidence
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await door.stub.Embed(ask(FULL), timeout=4.0)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "cannot be met" in (caught.value.details() or "")
        assert await code_of(door.stub.Embed(ask("snow"), timeout=30.0)) is grpc.StatusCode.OK
    assert engine.queries == 2


async def test_without_fresh_evidence_a_call_goes_through_and_brings_some() -> None:
    engine = slow_engine(slowness=1.0)
    async with listening(engine) as door:
        [model_revision] = door.models.in_service()
        [replica] = model_revision.dispatcher.replicas.values()
        for _ in range(200):  # a bad prediction: of a quarter of an hour
            replica._scale.observe(1e3, 1e-3)  # noqa: SLF001
        assert replica.step_time_s(52) > 20.0
        assert await code_of(door.stub.Embed(ask(FULL), timeout=20.0)) is grpc.StatusCode.OK


async def test_under_overload_what_cannot_be_in_time_is_refused_and_next_to_nothing_computed_for_nobody() -> None:
    engine = slow_engine(slowness=150.0)  # nine calls take 0.85 s
    async with listening(engine) as door:
        await door.stub.Embed(ask(FULL))
        loop = asyncio.get_running_loop()

        async def timed(number: int) -> tuple[grpc.StatusCode, float]:
            start_s = loop.time()
            code = await code_of(door.stub.Embed(ask(f"{FULL} {number}"), timeout=5.0))
            return code, loop.time() - start_s

        results = await asyncio.gather(*(timed(number) for number in range(200)))
    answered = [taken_s for code, taken_s in results if code is grpc.StatusCode.OK]
    refused = [taken_s for code, taken_s in results if code is grpc.StatusCode.DEADLINE_EXCEEDED]
    assert len(answered) + len(refused) == 200
    assert len(answered) > 20
    assert engine.queries <= len(answered) + 30
