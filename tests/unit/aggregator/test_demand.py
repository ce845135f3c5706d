"""What the scaler is told: arrivals whatever becomes of them, what is held, what the model servers can do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc.aio
import pytest

from aggregator.adapters.demand_server import DemandServer
from aggregator.core.query import Source
from aggregator.demand import DemandReport
from aggregator.errors import StartError
from protos.aggregator.v1 import aggregator_pb2 as pb
from protos.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tests.fakes.clock import run
from tests.fakes.world import CURVE, MODEL, SerialEngine, World


class Positions:
    def positions(self) -> Mapping[tuple[str, int], int]:
        return {("requests", 0): 7, ("requests", 1): 9}

    def lag_records(self) -> Mapping[tuple[str, int], int]:
        return {("requests", 0): 3}


def report(world: World) -> pb.GetDemandResponse:
    pipeline = world.pipeline
    return DemandReport(pipeline.models, pipeline.meter, {"requests": MODEL}, Positions())()


def test_lanes_say_what_they_can_do_inside_their_budget() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            await world.embed("1 2")
            (lane,) = report(world).models[0].lanes
        assert lane.token_budget == CURVE.saturation_point
        assert lane.step_time_s == pytest.approx(CURVE.time_s(CURVE.saturation_point), rel=0.1)
        assert lane.batches_out == 0

    run(check())


def test_arrivals_are_kept_apart_by_source_and_counted_in_tokens() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            for _ in range(20):
                world.produce(world.request("1 2 3 4 5 6 7 8", source=Source.KAFKA))  # ten tokens
                await world.embed("1")  # three
                await asyncio.sleep(0.5)
            model = report(world).models[0]
        assert model.kafka_tokens_per_s == pytest.approx(20, rel=0.15)
        assert model.grpc_tokens_per_s == pytest.approx(6, rel=0.15)
        assert model.tokens_per_record == 10

    run(check())


def test_refused_and_expired_requests_are_demand() -> None:
    async def check() -> None:
        async with World(SerialEngine(), max_held_tokens=30).started() as world:
            await world.embed("1")
            calls = [world.embed("1 2 3 4 5 6", in_s=-1.0 if number % 2 else None) for number in range(100)]
            answered = await asyncio.gather(*calls)
            found = report(world).models[0].grpc_tokens_per_s
        assert {request.code.name for request in answered} >= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
        assert found > 300

    run(check())


def test_an_unknown_model_is_nobodys_demand() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            await world.embed("1", model="other")
            assert report(world).models[0].grpc_tokens_per_s == 0.0

    run(check())


def test_what_is_held_counts_until_it_is_answered() -> None:
    async def check() -> None:
        async with World(SerialEngine(slowness=1000.0)).started() as world:
            world.produce(world.request("1 2 3", source=Source.KAFKA))
            await asyncio.sleep(0.01)
            model = report(world).models[0]
            assert model.held_tokens == 5
            assert model.lanes[0].tokens_out == 5

    run(check())


def test_requests_that_wait_for_a_first_server_are_told() -> None:
    async def check() -> None:
        async with World().started() as world:
            world.produce(world.request("1", source=Source.KAFKA), world.request("2", source=Source.KAFKA))
            await asyncio.sleep(0.01)
            model = report(world).models[0]
            assert model.parked_requests == 2
            assert not model.lanes

    run(check())


def test_partitions_come_with_position_lag_and_model() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            partitions = report(world).partitions
        assert [(each.partition, each.fetch_position, each.lag_records, each.model) for each in partitions] == [
            (0, 7, 3, MODEL),
            (1, 9, 0, MODEL),
        ]

    run(check())


async def test_the_scaler_is_answered_over_grpc() -> None:
    server = DemandServer("127.0.0.1:0", lambda: pb.GetDemandResponse(instance_id="a"))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            answer = await pb_grpc.DemandStub(channel).GetDemand(pb.GetDemandRequest())
        assert answer.instance_id == "a"
        with pytest.raises(StartError, match="is another program using the port"):
            await DemandServer(server.address, pb.GetDemandResponse).start()
    finally:
        await server.stop()
