"""Who is taken and who is refused at the gate, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf

import pytest

from aggregator.core.admission import Admission, AdmissionPolicy
from aggregator.core.lanes import Lane, LanePolicy, StepReport
from aggregator.core.outlook import Outlook, forecast
from aggregator.core.query import Priority, Query, Source
from aggregator.core.queue import QueuePolicy, TokenQueue
from aggregator.core.quotas import QuotaPolicy, Quotas
from aggregator.core.saturation import Curve, Rule
from aggregator.errors import Code, Expired, InvalidRequest, Overloaded, TokenbatchError
from aggregator.gate import Gate
from aggregator.request import Failure, Options, Request
from protos.embedding.v1 import embedding_pb2 as pb
from tests.fakes.clock import run
from tests.fakes.world import SerialEngine, World

TEN_TOKENS = "5 " * 8
NO_SHARING = QueuePolicy(coalesce=False)


def failed(request: Request) -> Failure:
    [outcome] = request.outcomes
    assert isinstance(outcome, Failure)
    return outcome


def jain(values: list[float]) -> float:
    """1 when all are equal, 1/n when one has all (Jain, Chiu and Hawe, 1984)."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def test_a_full_queue_says_when_to_come_again() -> None:
    async def check() -> None:
        async with World(SerialEngine(), max_held_tokens=200, queue=NO_SHARING).started() as world:
            requests = await asyncio.gather(*(world.embed(TEN_TOKENS) for _ in range(60)))
            refused = [request for request in requests if request.code is Code.RESOURCE_EXHAUSTED]
            assert len(refused) > 20
            assert all(0.01 <= failed(request).retry_after_s <= 5 for request in refused)
            assert all(failed(request).retryable for request in refused)
            assert (await world.embed(TEN_TOKENS)).code is Code.OK

    run(check())


def test_retries_are_spread() -> None:
    pauses = iter(range(100))

    async def check() -> None:
        world = World(SerialEngine(), max_held_tokens=100, queue=NO_SHARING)
        world.pipeline._gate = Gate(Quotas(QuotaPolicy()), jitter=lambda: next(pauses) / 100)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            requests = await asyncio.gather(*(world.embed(TEN_TOKENS) for _ in range(60)))
        told = {failed(request).retry_after_s for request in requests if request.code is Code.RESOURCE_EXHAUSTED}
        assert len(told) > 20

    run(check())


def test_a_retry_is_never_told_for_later_than_half_the_time_that_is_left() -> None:
    async def check() -> None:
        world = World(SerialEngine(), queue=NO_SHARING)
        world.pipeline._gate = Gate(Quotas(QuotaPolicy(1.0, burst_s=10.0)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            await world.embed(TEN_TOKENS)
            assert failed(await world.embed(TEN_TOKENS, in_s=1.0)).retry_after_s == 0.5

    run(check())


def test_a_tenant_beyond_its_rate_is_refused_and_others_are_not() -> None:
    async def check() -> None:
        world = World(SerialEngine(), queue=NO_SHARING)
        world.pipeline._gate = Gate(Quotas(QuotaPolicy(100.0, burst_s=1.0)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            requests = [await world.embed(TEN_TOKENS, tenant="a") for _ in range(15)]
            codes = [request.code for request in requests]
            assert codes.count(Code.OK) == 10
            assert codes.count(Code.RESOURCE_EXHAUSTED) == 5
            assert (await world.embed(TEN_TOKENS, tenant="b")).code is Code.OK
            await asyncio.sleep(0.1)
            assert (await world.embed(TEN_TOKENS, tenant="a")).code is Code.OK

    run(check())


def test_what_came_by_kafka_counts_against_its_tenants_rate_and_is_never_refused() -> None:
    async def check() -> None:
        world = World(SerialEngine(), queue=NO_SHARING)
        world.pipeline._gate = Gate(Quotas(QuotaPolicy(100.0, burst_s=1.0)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            world.produce(*(world.request(TEN_TOKENS, source=Source.KAFKA, tenant="a") for _ in range(20)))
            await asyncio.sleep(0.1)
            assert [request.code for request in world.kafka.settled] == [Code.OK] * 20
            assert (await world.embed(TEN_TOKENS, tenant="a")).code is Code.RESOURCE_EXHAUSTED

    run(check())


def test_under_overload_deadlines_are_kept_or_refused_at_once() -> None:
    async def check() -> None:
        engine = SerialEngine()  # 100 tokens take 3 ms: ten calls
        async with World(engine, queue=NO_SHARING).started() as world:
            await world.embed(TEN_TOKENS)
            loop = asyncio.get_running_loop()
            start_s = loop.time()
            ends: dict[Code, list[float]] = {Code.OK: [], Code.DEADLINE_EXCEEDED: []}

            async def call() -> None:
                request = await world.embed(TEN_TOKENS, in_s=0.1)
                ends[request.code].append(loop.time() - start_s)

            await asyncio.gather(*(call() for _ in range(900)))
        assert len(ends[Code.OK]) > 250
        assert max(ends[Code.OK]) < 0.1
        refused = sorted(ends[Code.DEADLINE_EXCEEDED])
        assert refused[int(len(refused) * 0.9)] < 0.01
        computed = sum(batch.query_count for batch in engine.batches) - 1
        assert computed == len(ends[Code.OK])

    run(check())


def test_equal_tenants_get_equal_service_whatever_one_of_them_sends() -> None:
    tenants = ("flood", "b", "c", "d")
    callers: dict[str, int] = {"flood": 100, "b": 20, "c": 20, "d": 20}
    served: Counter[str] = Counter()

    async def check() -> None:
        async with World(SerialEngine(), max_held_tokens=1000, queue=NO_SHARING).started() as world:

            async def call_on(tenant: str) -> None:
                while True:
                    request = await world.embed(TEN_TOKENS, tenant=tenant)
                    served[tenant] += request.code is Code.OK
                    if request.code is not Code.OK:
                        await asyncio.sleep(0.005)

            tasks = [asyncio.ensure_future(call_on(tenant)) for tenant in tenants for _ in range(callers[tenant])]
            await asyncio.sleep(0.5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(check())
    assert sum(served.values()) > 1000
    assert jain([float(served[tenant]) for tenant in tenants]) >= 0.95


def call(tenant: str = "a", inputs: int = 1, options: Options | None = None, *, in_s: float = inf) -> Request:
    """A call that was received at 100 s."""
    return Request(
        "q",
        "m",
        "",
        ["x"] * inputs,
        options or Options(dimensions=8),
        Priority.INTERACTIVE,
        Source.GRPC,
        tenant,
        100.0,
        100.0 + in_s,
        None,
        [None] * inputs,
        inputs,
    )


class Door:
    """A gate with all it looks at: a bound of 1,000 tokens, one lane of 10,000 tokens/s with fresh evidence."""

    def __init__(self, quotas: QuotaPolicy | None = None, *, jitter: float = 0.0, max_reply_bytes: int = 2**24) -> None:
        self.gate = Gate(Quotas(quotas or QuotaPolicy()), max_reply_bytes=max_reply_bytes, jitter=lambda: jitter)
        self.admission = Admission(AdmissionPolicy(1000))
        self.queue = TokenQueue(QueuePolicy())
        self.outlook = Outlook(self.queue)
        lane = Lane("a", Curve(0.0, 0.0, 1e-4, 100, Rule.THROUGHPUT, 1000), 100, LanePolicy())
        lane.sent("0", 100, 99.99)
        lane.ended("0", 100.0, StepReport(100, 0.01, 0, 0.0, 0.0))
        self.found = forecast([lane], 100.0)
        assert self.found is not None

    def refusal(self, request: Request, token_count: int = 10, *, known: bool = True) -> TokenbatchError | None:
        return self.gate.refusal(
            request, token_count, self.admission, self.outlook, self.found if known else None, now_s=100.0
        )

    def retry_s(self, request: Request, token_count: int = 10, *, known: bool = True) -> float:
        told = self.refusal(request, token_count, known=known)
        assert isinstance(told, Overloaded)
        return told.retry_after_s


def test_with_room_and_time_a_call_is_taken() -> None:
    assert Door().refusal(call(in_s=1.0), 1000) is None


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (4, Options(dimensions=64)),
        (8, Options(dimensions=64, encoding=pb.ENCODING_FLOAT16)),
        (16, Options(dimensions=64, encoding=pb.ENCODING_INT8)),
    ],
)
def test_vectors_that_just_fit_one_answer_are_taken_and_no_more(inputs: int, options: Options) -> None:
    assert Door(max_reply_bytes=1024).refusal(call(inputs=inputs, options=options)) is None
    told = Door(max_reply_bytes=1023).refusal(call(inputs=inputs, options=options))
    assert isinstance(told, InvalidRequest)
    assert "would have 1024 bytes: at most 1023 are sent" in str(told)


def test_unless_told_otherwise_the_vectors_of_one_answer_may_have_16_mib() -> None:
    door = Door()
    door.gate = Gate(Quotas(QuotaPolicy()), jitter=lambda: 0.0)
    assert door.refusal(call(inputs=1024, options=Options(dimensions=4096))) is None
    assert isinstance(door.refusal(call(inputs=1024, options=Options(dimensions=4097))), InvalidRequest)


def test_a_full_model_and_a_full_tenants_share_are_told_apart() -> None:
    door = Door()
    door.admission.charge(Source.GRPC, 800, "a")
    assert "tenant's share" in str(door.refusal(call("a"), 10))
    door.admission.charge(Source.KAFKA, 200)
    assert "the queue is full" in str(door.refusal(call("b"), 10))


def test_who_finds_the_model_full_is_told_to_come_when_there_will_be_room() -> None:
    door = Door()
    door.admission.charge(Source.KAFKA, 5000)
    assert door.retry_s(call("b"), 1000) == pytest.approx(5000 / 10_000)
    assert door.retry_s(call("b"), 1000, known=False) == pytest.approx(0.1)


def test_who_used_a_rate_up_is_told_to_come_when_it_allows_that_much_again() -> None:
    door = Door(QuotaPolicy(100.0, burst_s=10.0))
    door.gate.charge(call(), 1000, 100.0)
    assert door.retry_s(call(), 150) == pytest.approx(1.5)
    assert door.refusal(call("b"), 150) is None


@pytest.mark.parametrize(
    ("owed", "jitter", "told_s"), [(1, 0.0, 0.02), (1, 0.5, 0.03), (900, 0.0, 5.0), (900, 0.5, 7.5)]
)
def test_nobody_is_told_to_come_at_once_or_ever_so_late_and_not_all_together(
    owed: int, jitter: float, told_s: float
) -> None:
    door = Door(QuotaPolicy(100.0, burst_s=10.0), jitter=jitter)
    door.gate.charge(call(), 1000, 100.0)
    assert door.retry_s(call(), owed) == pytest.approx(told_s)


@pytest.mark.parametrize(("left_s", "told_s"), [(4.0, 1.0), (1.0, 0.5), (0.01, 0.01), (-1.0, 0.01)])
def test_a_retry_leaves_half_of_the_time_that_is_left(left_s: float, told_s: float) -> None:
    door = Door(QuotaPolicy(100.0, burst_s=10.0))
    door.gate.charge(call(), 1000, 100.0)
    assert door.retry_s(call(in_s=left_s), 100) == pytest.approx(told_s)


def test_a_deadline_that_cannot_be_met_is_refused_only_where_lanes_have_fresh_evidence() -> None:
    door = Door()
    query = Query(None, 0, Priority.INTERACTIVE, "a", 100.0, 100.05)
    door.queue.put(query, b"", 500)
    door.outlook.charge(Priority.INTERACTIVE, "a", 100.05, 500)
    assert isinstance(door.refusal(call(in_s=0.055)), Expired)
    assert door.refusal(call(in_s=0.055), known=False) is None
    assert door.refusal(call(in_s=1.0)) is None


def test_a_rate_is_looked_at_before_the_bound_and_both_before_the_deadline() -> None:
    door = Door(QuotaPolicy(100.0, burst_s=1.0))
    door.gate.charge(call(), 100, 100.0)
    door.admission.charge(Source.KAFKA, 1000)
    assert "rate" in str(door.refusal(call(in_s=0.0001)))
    assert "full" in str(door.refusal(call("b", in_s=0.0001)))
