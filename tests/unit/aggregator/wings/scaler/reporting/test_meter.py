"""What the scaler is told: arrivals whatever becomes of them, what is held, what the model servers can do."""

from __future__ import annotations

import asyncio

import pytest

from aggregator.request.request import Backlog, Held, Paced
from aggregator.scheduler.queue import QueuePolicy, TokenQueue
from aggregator.wings.scaler.reporting.arrivals import ArrivalPolicy
from aggregator.wings.scaler.reporting.meter import DemandMeter, DemandReport
from protos.aggregator.v1 import aggregator_pb2 as pb
from tests.support.fake_source import KAFKA, FakeSource, any_request
from tests.support.faked_pipeline import MODEL, FakedPipeline, new_engine
from tests.support.virtual_time import ManualClock, in_virtual_time


def backlogs() -> list[Backlog]:
    stream = Backlog("redis", "stream", "redis", MODEL, 3)
    return [*(Backlog("kafka", "requests", n, MODEL, 0, position=7 + 2 * n) for n in range(2)), stream]


def report(faked: FakedPipeline) -> pb.GetDemandResponse:
    pipeline = faked.pipeline
    assert isinstance(pipeline.demand, DemandMeter)
    return DemandReport(pipeline.models, pipeline.demand, backlogs)()


@in_virtual_time
async def test_refused_and_expired_requests_are_demand() -> None:
    async with FakedPipeline(new_engine(), max_held_tokens=30).started() as faked:
        await faked.embed("1")
        calls = [faked.embed("1 2 3 4 5 6", in_s=-1.0 if number % 2 else None) for number in range(100)]
        answered = await asyncio.gather(*calls)
        found = report(faked).models[0].other_tokens_per_s
    assert {request.code.name for request in answered} >= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    assert found > 300


@in_virtual_time
async def test_requests_that_wait_for_a_first_server_are_told() -> None:
    async with FakedPipeline().started() as faked:
        faked.produce(faked.request("1", source=KAFKA), faked.request("2", source=KAFKA))
        await asyncio.sleep(0.01)
        model = report(faked).models[0]
        assert model.pending_requests == 2
        assert not model.replicas


@in_virtual_time
async def test_calls_that_wait_for_a_model_that_scales_to_zero_are_demand() -> None:
    async with FakedPipeline(scales_to_zero=True).started() as faked:
        waiting = [asyncio.create_task(faked.embed(*texts)) for texts in (("1",), ("2", "3"))]
        await asyncio.sleep(0.5)
        model = report(faked).models[0]
        assert (model.pending_requests, model.other_tokens_per_s > 0.0) == (2, True)
        for call in waiting:
            call.cancel()


def metered(clock: ManualClock, window_s: float = 15.0) -> tuple[FakedPipeline, DemandMeter]:
    """A pipeline whose demand is measured by hand."""
    faked = FakedPipeline()
    return faked, DemandMeter(faked.pipeline.models, policy=ArrivalPolicy(window_s=window_s), clock=clock)


class HourlySource(FakeSource):
    """Its requests have hours."""

    def paced(self, model: str) -> Paced | None:
        return Paced(3.0, 40.0) if model == MODEL else None


@in_virtual_time
async def test_a_source_that_has_hours_asks_for_its_pace_alone() -> None:
    clock = ManualClock(1000.0)
    faked, meter = metered(clock, window_s=1e6)
    source = HourlySource("batches", refusable=False)
    meter.sources = [source]
    requests = [faked.request("1"), faked.request("2", source=source)]
    for request, tokens in zip(requests, (60, 50), strict=True):
        meter.arrived(request.source.name, [request])
        request.hold(Held(faked.model.admission, *_NOWHERE), tokens)
    meter.counted(faked.model, requests)
    clock.now_s += 10.0
    told = meter.of(faked.model)
    assert told.other_tokens_per_s == pytest.approx(60 / 10 + 3.0, rel=0.001)
    assert told.held_tokens == 60 + 50 - 40


@in_virtual_time
async def test_requests_count_with_all_their_inputs_by_any_name_of_their_model() -> None:
    clock = ManualClock(1000.0)
    faked, meter = metered(clock, window_s=1e6)  # long enough to forget nothing
    requests = [faked.request("1", "2", "3"), faked.request("4", model="alias"), faked.request("5", model="none")]
    requests.append(faked.request("6", "7", source=KAFKA))
    meter.arrived("grpc", requests[:3])
    meter.arrived("kafka", requests[3:])
    for request, tokens in zip(requests, (60, 20, 0, 10), strict=True):
        if tokens:
            request.hold(Held(faked.model.admission, *_NOWHERE), tokens)
    meter.counted(faked.model, [request for request in requests if request.held is not None])
    clock.now_s += 10.0
    told = meter.of(faked.model)
    assert told.other_tokens_per_s == pytest.approx((60 + 20) / 10, rel=0.001)
    assert told.kafka_tokens_per_s == pytest.approx(1.0, rel=0.001)
    assert told.tokens_per_record == 10.0
    assert told.held_tokens == 90


_NOWHERE = (TokenQueue(QueuePolicy()), None, 0.0)


@in_virtual_time
async def test_what_was_refused_is_counted_as_long_as_those_that_were_held() -> None:
    clock = ManualClock(1000.0)
    faked, meter = metered(clock, window_s=1e6)
    requests = [faked.request("1") for _ in range(10)]
    meter.arrived("grpc", requests)
    requests[0].hold(Held(faked.model.admission, *_NOWHERE), 7)
    meter.counted(faked.model, requests)  # the other nine were refused: of them no tokens are known
    clock.now_s += 10.0
    assert meter.of(faked.model).other_tokens_per_s == pytest.approx(7.0, rel=0.001)


@in_virtual_time
async def test_the_length_of_a_topics_records_is_that_of_its_models() -> None:
    faked, meter = metered(ManualClock(1000.0))
    record = faked.request("1", source=KAFKA)
    meter.arrived("kafka", [record])
    record.hold(Held(faked.model.admission, *_NOWHERE), 25)
    meter.counted(faked.model, [record])
    assert meter.tokens_per_record("alias") == meter.tokens_per_record(MODEL) == 25.0
    assert list(DemandReport(faked.pipeline.models, meter)().partitions) == []


@in_virtual_time
async def test_a_report_says_how_busy_the_loop_was_and_what_is_configured() -> None:
    clock = ManualClock(1000.0)
    faked, meter = metered(clock)
    told = DemandReport(faked.pipeline.models, meter, backlogs)
    first = told()
    await asyncio.sleep(1.0)
    second = told()
    assert first.busy_share == 0.0
    assert second.busy_share == 1.0, "the virtual clock is the thread's, too"
    places = [(each.topic, each.partition, each.fetch_position, each.model) for each in first.partitions]
    assert places == [("requests", 0, 7, MODEL), ("requests", 1, 9, MODEL)]
    assert [(each.stream, each.model, each.waiting_entries) for each in first.streams] == [("stream", MODEL, 3)]
    assert [model.model for model in first.models] == [MODEL]


@in_virtual_time
async def test_waiting_stream_entries_are_reported_with_the_mean_request_length() -> None:
    faked, meter = metered(ManualClock(1000.0))
    request = any_request("1", model=MODEL, source=FakeSource("redis", refusable=False))
    meter.arrived("redis", [request])
    request.hold(Held(faked.model.admission, *_NOWHERE), 25)
    meter.counted(faked.model, [request])
    told = DemandReport(faked.pipeline.models, meter, lambda: [Backlog("redis", "s", "redis", "alias", 9)])()
    assert list(told.streams) == [pb.Stream(stream="s", model="alias", waiting_entries=9, tokens_per_entry=25.0)]
    assert meter.totals() == (1, 25)


@in_virtual_time
async def test_requests_of_an_absent_model_keep_no_others_from_being_counted() -> None:
    clock = ManualClock(1000.0)
    faked, meter = metered(clock, window_s=1e6)
    requests = [faked.request("1", model="none"), *(faked.request(str(number)) for number in range(4))]
    meter.arrived("grpc", requests)
    for request in requests[1:]:
        request.hold(Held(faked.model.admission, *_NOWHERE), 10)
    meter.counted(faked.model, requests[1:])
    clock.now_s += 10.0
    assert meter.of(faked.model).other_tokens_per_s == pytest.approx(4.0, rel=0.001)


@in_virtual_time
async def test_the_mean_length_of_records_is_over_all_that_were_counted_at_once() -> None:
    faked, meter = metered(ManualClock(1000.0))
    records = [faked.request("1", source=KAFKA) for _ in range(4)]
    for record in records:
        record.hold(Held(faked.model.admission, *_NOWHERE), 10)
    meter.counted(faked.model, records)
    assert meter.tokens_per_record("alias") == 10.0
