"""What the scaler is told: arrivals whatever becomes of them, what is held, what the model servers can do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc.aio
import pytest

from aggregator.admission.held import Held, hold
from aggregator.errors import StartError
from aggregator.observability.demand import DemandMeter, DemandReport
from aggregator.observability.demand_server import DemandServer
from aggregator.scheduler.budget.controller import SlaGoal
from aggregator.scheduler.queue import QueuePolicy, TokenQueue
from aggregator.scheduler.rates import ArrivalPolicy
from protos.aggregator.v1 import aggregator_pb2 as pb
from protos.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tests.fakes.clock import ManualClock, run
from tests.fakes.sources import KAFKA
from tests.fakes.world import CURVE, MODEL, World, new_engine


class Positions:
    def positions(self) -> Mapping[tuple[str, int], int]:
        return {("requests", 0): 7, ("requests", 1): 9}


def report(world: World) -> pb.GetDemandResponse:
    pipeline = world.pipeline
    return DemandReport(pipeline.models, pipeline.meter, {"requests": MODEL}, Positions())()


def test_replicas_say_what_they_can_do_inside_their_budget() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            await world.embed("1 2")
            (replica,) = report(world).models[0].replicas
        assert replica.token_budget == CURVE.saturation_point
        assert replica.step_time_s == pytest.approx(CURVE.time_s(CURVE.saturation_point), rel=0.1)

    run(check())


def test_arrivals_are_kept_apart_by_source_and_counted_in_tokens() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            for _ in range(20):
                world.produce(world.request("1 2 3 4 5 6 7 8", source=KAFKA))  # ten tokens
                await world.embed("1")  # three
                await asyncio.sleep(0.5)
            model = report(world).models[0]
        assert model.kafka_tokens_per_s == pytest.approx(20, rel=0.15)
        assert model.grpc_tokens_per_s == pytest.approx(6, rel=0.15)
        assert model.tokens_per_record == 10

    run(check())


def test_refused_and_expired_requests_are_demand() -> None:
    async def check() -> None:
        async with World(new_engine(), max_held_tokens=30).started() as world:
            await world.embed("1")
            calls = [world.embed("1 2 3 4 5 6", in_s=-1.0 if number % 2 else None) for number in range(100)]
            answered = await asyncio.gather(*calls)
            found = report(world).models[0].grpc_tokens_per_s
        assert {request.code.name for request in answered} >= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
        assert found > 300

    run(check())


def test_an_unknown_model_is_nobodys_demand() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            await world.embed("1", model="other")
            assert report(world).models[0].grpc_tokens_per_s == 0.0

    run(check())


def test_what_is_held_counts_until_it_is_answered() -> None:
    async def check() -> None:
        async with World(new_engine(slowness=1000.0)).started() as world:
            world.produce(world.request("1 2 3", source=KAFKA))
            await asyncio.sleep(0.01)
            model = report(world).models[0]
            assert model.held_tokens == 5

    run(check())


def test_requests_that_wait_for_a_first_server_are_told() -> None:
    async def check() -> None:
        async with World().started() as world:
            world.produce(world.request("1", source=KAFKA), world.request("2", source=KAFKA))
            await asyncio.sleep(0.01)
            model = report(world).models[0]
            assert model.pending_requests == 2
            assert not model.replicas

    run(check())


def test_partitions_come_with_position_and_model() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            partitions = report(world).partitions
        assert [(each.partition, each.fetch_position, each.model) for each in partitions] == [
            (0, 7, MODEL),
            (1, 9, MODEL),
        ]

    run(check())


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "[::ffff:127.0.0.1]:0"])
async def test_the_scaler_is_answered_over_grpc(bind: str) -> None:
    server = DemandServer(bind, lambda: pb.GetDemandResponse(busy_share=0.5))
    assert server.address == ""
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            answer = await pb_grpc.DemandStub(channel).GetDemand(pb.GetDemandRequest())
        assert answer.busy_share == 0.5
        with pytest.raises(StartError, match="is another program using the port"):
            await DemandServer(server.address, pb.GetDemandResponse).start()
    finally:
        await server.stop()


def metered(clock: ManualClock, window_s: float = 15.0) -> tuple[World, DemandMeter]:
    """A world whose demand is measured by hand."""
    world = World()
    return world, DemandMeter(world.pipeline.models, policy=ArrivalPolicy(window_s=window_s), clock=clock)


def test_requests_count_with_all_their_inputs_whatever_name_their_model_goes_by() -> None:
    async def check() -> None:
        clock = ManualClock(1000.0)
        world, meter = metered(clock, window_s=1e6)  # long enough to forget nothing
        requests = [world.request("1", "2", "3"), world.request("4", model="alias"), world.request("5", model="none")]
        requests.append(world.request("6", "7", source=KAFKA))
        meter.arrived("grpc", requests[:3])
        meter.arrived("kafka", requests[3:])
        for request, tokens in zip(requests, (60, 20, 0, 10), strict=True):
            if tokens:
                hold(request, Held(world.model.admission, *_NOWHERE), tokens)
        meter.counted(world.model, [request for request in requests if request.held is not None])
        clock.now_s += 10.0
        told = meter.of(world.model)
        assert told.grpc_tokens_per_s == pytest.approx((60 + 20) / 10, rel=0.001)
        assert told.kafka_tokens_per_s == pytest.approx(1.0, rel=0.001)
        assert told.tokens_per_record == 10.0
        assert told.held_tokens == 90

    run(check())


_NOWHERE = (TokenQueue(QueuePolicy()), None, 0.0)


def test_what_was_refused_is_counted_as_long_as_those_that_were_held() -> None:
    async def check() -> None:
        clock = ManualClock(1000.0)
        world, meter = metered(clock, window_s=1e6)
        requests = [world.request("1") for _ in range(10)]
        meter.arrived("grpc", requests)
        hold(requests[0], Held(world.model.admission, *_NOWHERE), 7)
        meter.counted(world.model, requests)  # the other nine were refused: of them no tokens are known
        clock.now_s += 10.0
        assert meter.of(world.model).grpc_tokens_per_s == pytest.approx(7.0, rel=0.001)

    run(check())


def test_the_length_of_a_topics_records_is_that_of_its_models() -> None:
    async def check() -> None:
        world, meter = metered(ManualClock(1000.0))
        record = world.request("1", source=KAFKA)
        meter.arrived("kafka", [record])
        hold(record, Held(world.model.admission, *_NOWHERE), 25)
        meter.counted(world.model, [record])
        told = DemandReport(world.pipeline.models, meter, {"requests": "alias"}, None)
        assert told.tokens_per_record("requests") == meter.tokens_per_record("alias") == 25.0
        assert list(told().partitions) == []

    run(check())


def test_a_report_says_how_busy_the_loop_was_and_what_is_configured() -> None:
    async def check() -> None:
        clock = ManualClock(1000.0)
        world, meter = metered(clock)
        told = DemandReport(world.pipeline.models, meter, {"requests": MODEL}, Positions())
        first = told()
        sum(range(100_000))
        second = told()
        other = DemandReport(world.pipeline.models, meter, {}, Positions())()
        assert first.busy_share == 0.0
        assert 0.0 < second.busy_share <= 1.0
        assert [each.topic for each in first.partitions] == ["requests", "requests"]
        assert [model.model for model in first.models] == [MODEL]
        assert [each.model for each in other.partitions] == ["", ""]

    run(check())


def test_a_promise_is_told_with_how_it_was_kept_and_whether_budgets_can_still_fall() -> None:
    async def check() -> None:
        async with World(new_engine(slowness=100.0), goal=SlaGoal(answer_s=0.004, min_tokens=16)).started() as world:
            model = report(world).models[0]
            assert (model.slo_s, model.p99_s, model.replicas[0].budget_at_floor) == (0.004, 0.0, False)
            for _ in range(60):
                await asyncio.gather(*(world.embed("1 " * 20) for _ in range(10)))
            model = report(world).models[0]
        assert model.p99_s > 0.2
        assert model.replicas[0].budget_at_floor
        assert model.replicas[0].address == "server-1:1"
        assert model.replicas[0].step_time_s > CURVE.time_s(16)

    run(check())


def test_a_latency_target_is_told_with_the_recent_p99_and_without_one_neither() -> None:
    async def check() -> None:
        for goal, slo_s in ((SlaGoal(answer_s=0.25), 0.25), (None, 0.0)):
            async with World(new_engine(), goal=goal).started() as world:
                await world.embed("1")
                model = report(world).models[0]
                assert (model.slo_s, model.p99_s > 0.0) == (slo_s, goal is not None)
                assert model.replicas[0].budget_at_floor is False

    run(check())


def test_requests_of_a_model_that_is_not_there_keep_no_others_from_being_counted() -> None:
    async def check() -> None:
        clock = ManualClock(1000.0)
        world, meter = metered(clock, window_s=1e6)
        requests = [world.request("1", model="none"), *(world.request(str(number)) for number in range(4))]
        meter.arrived("grpc", requests)
        for request in requests[1:]:
            hold(request, Held(world.model.admission, *_NOWHERE), 10)
        meter.counted(world.model, requests[1:])
        clock.now_s += 10.0
        assert meter.of(world.model).grpc_tokens_per_s == pytest.approx(4.0, rel=0.001)

    run(check())


def test_the_mean_length_of_records_is_over_all_that_were_counted_at_once() -> None:
    async def check() -> None:
        world, meter = metered(ManualClock(1000.0))
        records = [world.request("1", source=KAFKA) for _ in range(4)]
        for record in records:
            hold(record, Held(world.model.admission, *_NOWHERE), 10)
        meter.counted(world.model, records)
        assert meter.tokens_per_record("alias") == 10.0

    run(check())
