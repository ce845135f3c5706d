"""Model servers come and go, and revisions take over: what waits for them is neither lost nor mixed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from typing_extensions import override

from aggregator.admission.models import REPLAYS_WAIT_S
from aggregator.admission.pending import Pending
from aggregator.errors import Code, ModelServerLost
from aggregator.request.request import Request
from aggregator.request.vector import Vector
from aggregator.scheduler.work_item import Priority
from tests.support.fake_engine import FakeEngine
from tests.support.fake_source import KAFKA
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.faked_pipeline import DESCRIPTION, MODEL, FakedPipeline, SlowCounting, new_engine
from tests.support.until import until
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_kafka_waits_for_a_first_model_server_without_limit() -> None:
    async with FakedPipeline().started() as faked:
        faked.produce(faked.request("1", source=KAFKA))
        await asyncio.sleep(100)
        assert not faked.kafka.replied
        assert faked.kafka.paused(MODEL, Priority.DEFAULT)
        faked.members.join(new_engine(), FakeTokenizer())
        await asyncio.sleep(1)
        assert [request.code for request in faked.kafka.replied] == [Code.OK]
        assert not faked.kafka.paused(MODEL, Priority.DEFAULT)


@in_virtual_time
async def test_calls_wait_a_minute_for_a_first_server_and_records_wait_on() -> None:
    async with FakedPipeline().started() as faked:
        faked.produce(faked.request("1", source=KAFKA))
        await asyncio.sleep(0.5)
        calls = [asyncio.create_task(faked.embed("1", in_s=in_s)) for in_s in (None, 5.0, 500.0)]
        await asyncio.sleep(59.4)
        assert [call.done() for call in calls] == [False, True, False]
        assert calls[1].result().code is Code.DEADLINE_EXCEEDED
        await asyncio.sleep(0.2)
        assert [call.result().code for call in (calls[0], calls[2])] == [Code.UNAVAILABLE] * 2
        assert (await faked.embed("1")).code is Code.UNAVAILABLE
        assert not faked.kafka.replied


@in_virtual_time
async def test_calls_wait_a_minute_after_the_last_server_and_records_wait_on() -> None:
    engine = new_engine(slowness=1e6)
    async with FakedPipeline(engine).started() as faked:
        calls = [asyncio.create_task(faked.embed(f"{number} 2 3")) for number in range(300)]
        faked.produce(faked.request("1", source=KAFKA))
        await asyncio.sleep(0.5)
        faked.members.leave(engine)
        await asyncio.sleep(59.8)
        calls.append(asyncio.create_task(faked.embed("1")))
        await asyncio.sleep(0.1)
        assert not any(call.done() for call in calls)
        await asyncio.sleep(0.2)
        codes = [call.result().code for call in calls if call.done()]
        assert len(codes) >= 20  # the others run
        assert calls[-1].done()
        assert (await faked.embed("1")).code is Code.UNAVAILABLE
        assert set(codes) == {Code.UNAVAILABLE}
        assert not faked.kafka.replied
        faked.members.join(new_engine(description=replace(DESCRIPTION, address="server-2:1")), FakeTokenizer())
        await asyncio.sleep(1)
        assert [request.code for request in faked.kafka.replied] == [Code.OK]
        for call in calls:
            call.cancel()


class Searched(Pending):
    """Counts how often it is searched."""

    searches = 0

    @override
    def __iter__(self) -> Iterator[Request]:
        self.searches += 1
        return super().__iter__()


@pytest.mark.parametrize("served_before", [True, False])
@in_virtual_time
async def test_records_without_a_server_are_not_searched_for_others_calls(*, served_before: bool) -> None:
    engine = new_engine()
    async with FakedPipeline(*[engine] * served_before).started() as faked:
        if served_before:
            faked.members.leave(engine)
        faked.embeds.pending = pending = Searched()
        faked.model.admission.charge(10, refusable=True)
        await asyncio.sleep(61)
        for _ in range(100):
            faked.produce(faked.request("1", source=KAFKA))
            await asyncio.sleep(0.01)
        assert pending.searches <= 2
        assert not faked.kafka.replied


@in_virtual_time
async def test_calls_that_come_to_be_queued_late_are_refused_within_a_second() -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        faked.embeds.revisions["r1"].counting = SlowCounting(5.0)
        faked.members.leave(engine)
        await asyncio.sleep(50)
        calls: list[asyncio.Task[Request]] = []
        for _ in range(3):
            await asyncio.sleep(3.2)
            calls.append(asyncio.create_task(faked.embed("1")))
        await asyncio.sleep(0.3)
        calls.append(asyncio.create_task(faked.embed("1")))  # at 59.9 s
        await asyncio.sleep(0.2)
        assert [call.done() for call in calls] == [True, False, False, False]
        await asyncio.sleep(5.6)
        assert [call.result().code for call in calls] == [Code.UNAVAILABLE] * 4


@in_virtual_time
async def test_a_call_awaits_a_model_that_scales_to_zero() -> None:
    async with FakedPipeline(scales_to_zero=True).started() as faked:
        waiting = [asyncio.create_task(faked.embed(*texts, in_s=60.0)) for texts in (("1",), ("2", "3"))]
        short = asyncio.create_task(faked.embed("4", in_s=1.0))
        await asyncio.sleep(0.5)
        assert len(faked.embeds.pending) == 3
        await asyncio.sleep(30)
        assert (await short).code is Code.DEADLINE_EXCEEDED
        assert not any(call.done() for call in waiting)
        faked.members.join(new_engine(), FakeTokenizer())
        assert [(await call).code for call in waiting] == [Code.OK, Code.OK]


@in_virtual_time
async def test_a_drain_tells_calls_that_wait_for_a_first_server_to_go_elsewhere() -> None:
    async with FakedPipeline(scales_to_zero=True).started() as faked:
        call = asyncio.create_task(faked.embed("1"))
        faked.produce(faked.request("1", source=KAFKA))
        await asyncio.sleep(0.5)
        await asyncio.wait_for(faked.drain(), 10)
        assert (await call).code is Code.UNAVAILABLE
        assert not faked.kafka.replied  # its next reader has it


@in_virtual_time
async def test_waiting_for_a_model_server_can_be_bounded() -> None:
    engine = new_engine()
    async with FakedPipeline(engine, max_unavailable_s=30.0).started() as faked:
        faked.members.leave(engine)
        faked.produce(faked.request("1", source=KAFKA))
        await asyncio.sleep(29)
        assert not faked.kafka.replied
        await asyncio.sleep(2)
        assert [request.code for request in faked.kafka.replied] == [Code.UNAVAILABLE]


@in_virtual_time
async def test_what_a_revision_decided_is_decided_anew_by_the_next_one() -> None:
    old = new_engine(slowness=1000.0)
    wider = replace(DESCRIPTION, address="new:1", model_revision="r2", dimensions=8, normalizes=True)
    async with FakedPipeline(old).started() as faked:
        await faked.occupy()
        waiting = faked.request("3", source=KAFKA)
        faked.produce(waiting)
        await asyncio.sleep(0.001)
        faked.members.join(new_engine(description=wider), FakeTokenizer())
        faked.members.leave(old)
        await asyncio.sleep(0.5)
        assert waiting.code is Code.OK
        assert (waiting.options.dimensions, waiting.options.normalize) == (8, True)


@in_virtual_time
async def test_a_replay_waits_at_a_start_for_the_revision_that_answered() -> None:
    async with FakedPipeline().started() as faked:
        replays = [faked.request(text, source=KAFKA) for text in ("1", "2")]
        replays[0].replay_revision, replays[1].replay_revision = "r1", "gone"
        faked.produce(*replays, faked.request("3", source=KAFKA))
        await asyncio.sleep(1)
        newer = new_engine(replace(DESCRIPTION, address="server-2:1", model_revision="r2"))
        faked.members.join(newer, FakeTokenizer())
        await asyncio.sleep(1)
        assert [revision(request) for request in faked.kafka.replied] == ["r2"]
        faked.members.join(new_engine(), FakeTokenizer())
        await asyncio.sleep(1)
        assert [revision(request) for request in faked.kafka.replied] == ["r2", "r1"]
        await asyncio.sleep(REPLAYS_WAIT_S)
        assert [revision(request) for request in faked.kafka.replied] == ["r2", "r1", "r2"]


@in_virtual_time
async def test_a_replay_waits_for_its_revision_while_a_server_is_probed_anew() -> None:
    older, newer = new_engine(), new_engine(replace(DESCRIPTION, address="server-2:1", model_revision="r2"))
    async with FakedPipeline(older).started() as faked:
        faked.members.join(newer, FakeTokenizer())
        await asyncio.sleep(2 * REPLAYS_WAIT_S)
        faked.members.leave(older)
        replays = [faked.request(text, source=KAFKA) for text in ("1", "2")]
        for replay in replays:
            replay.replay_revision = "r1"
        faked.produce(replays[0])
        await asyncio.sleep(1)
        faked.members.join(older, FakeTokenizer())
        await asyncio.sleep(1)
        assert [revision(request) for request in faked.kafka.replied] == ["r1"]
        faked.members.leave(older)
        faked.produce(replays[1])
        await asyncio.sleep(REPLAYS_WAIT_S - 0.1)
        assert len(faked.kafka.replied) == 1
        await asyncio.sleep(1)
        assert [revision(request) for request in faked.kafka.replied] == ["r1", "r2"]


def revision(request: Request) -> str:
    (outcome,) = request.outcomes
    assert isinstance(outcome, Vector)
    return outcome.batch.model_revision


@in_virtual_time
async def test_a_server_that_returns_with_other_limits_is_taken_at_its_word() -> None:
    old = new_engine()
    async with FakedPipeline(old).started() as faked:
        assert (await faked.embed("1 " * 40)).code is Code.OUT_OF_RANGE
        faked.members.leave(old)
        waiting = faked.request("1 " * 40, source=KAFKA)
        faked.produce(waiting)
        await asyncio.sleep(0.001)
        longer = new_engine(
            description=replace(DESCRIPTION, instance_id="2", max_input_tokens=64, step_query_capacity=1)
        )
        faked.members.join(longer, FakeTokenizer())
        assert (await faked.embed("1 " * 40)).code is Code.OK
        await asyncio.gather(*(faked.embed(str(number)) for number in range(10)))
        assert {batch.query_count for batch in longer.batches} == {1}
        assert faked.model.admission.total == 0


@in_virtual_time
async def test_what_fails_at_a_revision_that_was_taken_over_goes_to_the_new_one() -> None:
    old = new_engine(slowness=1000.0, failures=[ModelServerLost("gone"), ModelServerLost("gone")])
    new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"))
    async with FakedPipeline(old).started() as faked:
        under_way = await faked.occupy()
        faked.members.join(new, FakeTokenizer())
        faked.members.leave(old)
        await asyncio.sleep(10)
        assert {request.code for request in faked.kafka.replied} == {Code.OK}
        assert sorted(map(id, faked.kafka.replied)) == sorted(map(id, under_way))
        await faked.drain()


@asynccontextmanager
async def half_answered() -> AsyncGenerator[tuple[FakedPipeline, Request, FakeEngine, FakeEngine]]:
    """A record's request of many inputs, some with their vectors; the engine that computes, one of another revision."""
    old = new_engine(slowness=100.0)
    new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"))
    async with FakedPipeline(old).started() as faked:
        request = faked.request(*(f"{number} 1 1 1 1 1 1 1" for number in range(50)), source=KAFKA)
        faked.produce(request)
        await until(lambda: request.remaining < 50)
        yield faked, request, old, new
        await faked.drain()


@in_virtual_time
async def test_a_half_answered_request_begins_anew_when_a_revision_takes_over() -> None:
    async with half_answered() as (faked, request, old, new):
        faked.members.join(new, FakeTokenizer())
        faked.members.leave(old)
        await asyncio.sleep(30)
        assert faked.kafka.replied == [request]
        revisions = {outcome.batch.model_revision for outcome in request.outcomes if isinstance(outcome, Vector)}
        assert revisions == {"r2"}


@in_virtual_time
async def test_a_half_answered_request_of_a_revoked_partition_is_not_begun_anew() -> None:
    async with half_answered() as (faked, request, old, new):
        old.failures += [ModelServerLost("gone"), ModelServerLost("gone")]
        faked.pipeline.forget(lambda each: each is request)
        faked.members.join(new, FakeTokenizer())
        faked.members.leave(old)
        await asyncio.sleep(30)
        assert (faked.kafka.replied, new.batches, faked.model.admission.total) == ([], [], 0)


@in_virtual_time
async def test_a_request_counted_while_a_revision_takes_over_goes_there() -> None:
    old = new_engine()
    new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"))
    async with FakedPipeline(old).started() as faked:
        faked.embeds.revisions["r1"].counting = SlowCounting(1.0)
        call = asyncio.create_task(faked.embed("1", in_s=60))
        await asyncio.sleep(0.5)
        faked.members.join(new, FakeTokenizer())
        faked.members.leave(old)
        request = await call
        assert request.code is Code.OK
        assert new.batches
        assert not old.batches
