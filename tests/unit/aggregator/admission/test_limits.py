"""Who is taken and who is refused by the admission limits, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from math import inf

import pytest

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.quotas import QuotaPolicy, Quotas
from aggregator.app import make_limits
from aggregator.errors import Code
from aggregator.replicas.texts.text import Text
from aggregator.request import Failure, Options, Request
from aggregator.scheduler.dispatcher import Dispatcher, DispatchPolicy
from aggregator.scheduler.generating_replica import GeneratingReplica
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import UNMEASURED, Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.work_item import Priority
from aggregator.settings.aggregator import AggregatorSettings
from protos.embedding.v1 import embedding_pb2 as pb
from protos.generation.v1.generation_pb2 import Sampling
from protos.modelserver.v1.curve import Curve, Rule
from tests.fakes.clock import run
from tests.fakes.sources import GRPC, KAFKA, AnyOrigin
from tests.fakes.world import World, new_engine

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
        async with World(new_engine(), max_held_tokens=200, queue=NO_SHARING).started() as world:
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
        world = World(new_engine(), max_held_tokens=100, queue=NO_SHARING)
        world.pipeline._limits = AdmissionLimits(Quotas(QuotaPolicy()), jitter=lambda: next(pauses) / 100)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            requests = await asyncio.gather(*(world.embed(TEN_TOKENS) for _ in range(60)))
        told = {failed(request).retry_after_s for request in requests if request.code is Code.RESOURCE_EXHAUSTED}
        assert len(told) > 20

    run(check())


def test_a_retry_is_told_for_when_there_will_be_room_whatever_the_deadline() -> None:
    async def check() -> None:
        world = World(new_engine(), queue=NO_SHARING)
        world.pipeline._limits = AdmissionLimits(Quotas(QuotaPolicy(1.0, burst_s=10.0)), jitter=lambda: 0.0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            await world.embed(TEN_TOKENS)
            assert abs(failed(await world.embed(TEN_TOKENS, in_s=1.0)).retry_after_s - 10.0) < 0.1

    run(check())


class Obedient:
    """A caller that comes again when it was told to."""

    def __init__(self, world: World, tenant: str = "") -> None:
        self.refusals = 0
        self.answers = 0
        self._world = world
        self._tenant = tenant

    async def ask(self) -> float:
        """Until it is answered; returns the seconds that took."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while True:
            request = await self._world.embed(TEN_TOKENS, tenant=self._tenant)
            if request.code is Code.OK:
                self.answers += 1
                return loop.time() - started_s
            self.refusals += 1
            await asyncio.sleep(failed(request).retry_after_s)

    async def ask_on(self) -> None:
        """Without end."""
        while True:
            await self.ask()


@pytest.mark.slow
@pytest.mark.parametrize("tenant", ["", "a"])
def test_who_comes_again_when_told_asks_a_few_times_beside_a_queue_of_ten_seconds(tenant: str) -> None:
    async def check() -> None:
        world = World(new_engine(slowness=330.0), max_held_tokens=1000, queue=NO_SHARING)  # 100 tokens a second
        world.pipeline._limits = AdmissionLimits(Quotas(QuotaPolicy()), jitter=random.Random(1).random)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            others = [asyncio.ensure_future(Obedient(world, tenant).ask_on()) for _ in range(110)]
            await asyncio.sleep(15)
            callers = [Obedient(world, tenant) for _ in range(8)]
            for caller in callers:
                await caller.ask()
            refusals = [caller.refusals for caller in callers]
            assert sum(refusals) <= 3 * len(callers)
            assert max(refusals) <= 15
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    run(check())


@pytest.mark.slow
@pytest.mark.parametrize("tenants", [("",), ("a",), ("a", "b", "c")])
def test_many_who_come_again_when_told_are_refused_a_few_times_each_and_waste_no_step(tenants: tuple[str, ...]) -> None:
    async def check() -> None:
        engine = new_engine(slowness=165.0)  # 200 tokens a second
        async with World(engine, max_held_tokens=300, queue=NO_SHARING).started() as world:
            callers = [Obedient(world, tenants[number % len(tenants)]) for number in range(90)]
            tasks = [asyncio.ensure_future(caller.ask_on()) for caller in callers]
            await asyncio.sleep(15)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        answers = sum(caller.answers for caller in callers)
        assert answers > 0.9 * 15 * 200 / 10
        assert sum(caller.refusals for caller in callers) < 8 * answers  # there is room for a third of them

    run(check())


def test_who_comes_again_when_told_is_refused_a_few_times_by_its_tenants_rate() -> None:
    async def check() -> None:
        world = World(new_engine(), queue=NO_SHARING)
        world.pipeline._limits = AdmissionLimits(Quotas(QuotaPolicy(100.0, burst_s=2.0)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            callers = [Obedient(world, "a") for _ in range(10)]
            await asyncio.wait([asyncio.ensure_future(caller.ask_on()) for caller in callers], timeout=8)
        answers = sum(caller.answers for caller in callers)
        assert 80 <= answers <= 110
        assert sum(caller.refusals for caller in callers) < 2 * answers

    run(check())


def test_a_tenant_beyond_its_rate_is_refused_and_others_are_not() -> None:
    async def check() -> None:
        world = World(new_engine(), queue=NO_SHARING)
        world.pipeline._limits = AdmissionLimits(Quotas(QuotaPolicy(100.0, burst_s=1.0)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
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
        world = World(new_engine(), queue=NO_SHARING)
        world.pipeline._limits = AdmissionLimits(Quotas(QuotaPolicy(100.0, burst_s=1.0)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        async with world.started():
            world.produce(*(world.request(TEN_TOKENS, source=KAFKA, tenant="a") for _ in range(20)))
            await asyncio.sleep(0.1)
            assert [request.code for request in world.kafka.replied] == [Code.OK] * 20
            assert (await world.embed(TEN_TOKENS, tenant="a")).code is Code.RESOURCE_EXHAUSTED

    run(check())


def test_under_overload_deadlines_are_kept_and_nothing_late_is_computed() -> None:
    async def check() -> None:
        engine = new_engine()  # 100 tokens take 3 ms: ten calls
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
        assert max(ends[Code.DEADLINE_EXCEEDED]) < 0.11
        computed = sum(batch.query_count for batch in engine.batches) - 1
        assert computed == len(ends[Code.OK])

    run(check())


def test_equal_tenants_get_equal_service_whatever_one_of_them_sends() -> None:
    tenants = ("flood", "b", "c", "d")
    callers: dict[str, int] = {"flood": 100, "b": 20, "c": 20, "d": 20}
    served: Counter[str] = Counter()

    async def check() -> None:
        async with World(new_engine(), max_held_tokens=1000, queue=NO_SHARING).started() as world:

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
        GRPC,
        tenant,
        100.0,
        100.0 + in_s,
        AnyOrigin(),
        [None] * inputs,
        inputs,
    )


class Door:
    """The limits with all they look at: a bound of 1,000 tokens, one replica of 10,000 tokens/s."""

    def __init__(self, quotas: QuotaPolicy | None = None, *, jitter: float = 0.0, max_reply_bytes: int = 2**24) -> None:
        self.limits = AdmissionLimits(
            Quotas(quotas or QuotaPolicy()), max_reply_bytes=max_reply_bytes, jitter=lambda: jitter
        )
        self.admission = Admission(AdmissionPolicy(1000))
        replica = Replica("a", Curve(0.0, 0.0, 1e-4, 100, Rule.THROUGHPUT, 1000), 100, ReplicaPolicy())
        replica.sent("0", 100, 99.99)
        replica.ended("0", 100.0, StepReport(100, 0.01, 0, 0.0, 0.0))
        self.dispatcher = Dispatcher("m", DispatchPolicy())
        self.dispatcher.replicas["a"] = replica

    def refusal(self, request: Request, token_count: int = 10, *, now_s: float = 100.0) -> Failure | None:
        return self.limits.refusal(request, token_count, self.admission, self.dispatcher, now_s)

    def retry_s(self, request: Request, token_count: int = 10, *, now_s: float = 100.0) -> float:
        told = self.refusal(request, token_count, now_s=now_s)
        assert told is not None
        assert told.code is Code.RESOURCE_EXHAUSTED
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
    assert told is not None
    assert told.code is Code.INVALID_ARGUMENT
    assert "would have 1024 bytes: at most 1023 are sent" in told.message


def test_unless_told_otherwise_the_vectors_of_one_answer_may_have_16_mib() -> None:
    door = Door()
    door.limits = AdmissionLimits(Quotas(QuotaPolicy()), jitter=lambda: 0.0)
    assert door.refusal(call(inputs=1024, options=Options(dimensions=4096))) is None
    assert door.refusal(call(inputs=1024, options=Options(dimensions=4097))) is not None


def test_a_full_model_and_a_full_tenants_share_are_told_apart() -> None:
    door = Door()
    door.admission.charge(800, "a", refusable=True)
    assert "tenant's share" in str(door.refusal(call("a"), 10))
    door.admission.charge(200, refusable=False)
    assert "the queue is full" in str(door.refusal(call("b"), 10))


def test_who_finds_the_model_full_is_told_to_come_when_there_will_be_room() -> None:
    door = Door()
    door.admission.charge(5000, refusable=False)
    assert door.retry_s(call("b"), 1000) == pytest.approx(5000 / 10_000)
    del door.dispatcher.replicas["a"]
    assert door.retry_s(call("b"), 1000) == pytest.approx(0.02)


def test_who_was_refused_is_told_to_come_while_what_its_tenant_holds_is_served() -> None:
    for jitter in (0.0, 0.5, 1.0):
        door = Door(jitter=jitter)
        door.admission.charge(800, "a", refusable=True)
        door.admission.charge(100, "b", refusable=True)
        # 80 % of the share of 80 %; 1,600 tokens are served meanwhile, or all 900 that there are
        assert door.retry_s(call("a"), 10) == pytest.approx(0.0228 + jitter * 0.09, abs=1e-4)


def test_what_leaves_while_callers_are_refused_says_more_than_what_replicas_could_do() -> None:
    door = Door()
    door.admission.charge(1000, "a", refusable=True)
    assert door.retry_s(call("a"), 10) < 0.1
    door.admission.release(50, "a", refusable=True)
    assert door.retry_s(call("a"), 310, now_s=100.5) == pytest.approx((0.36 * 1260 - 0.64 * 50) / 100, abs=0.01)


def test_who_used_a_rate_up_is_told_to_come_when_it_allows_that_much_again() -> None:
    door = Door(QuotaPolicy(100.0, burst_s=10.0))
    door.limits.charge(call(), 1000, 100.0)
    assert door.retry_s(call(), 150) == pytest.approx(1.5)
    assert door.refusal(call("b"), 150) is None


@pytest.mark.parametrize(
    ("owed", "jitter", "told_s"), [(1, 0.0, 0.02), (1, 0.5, 5.02), (900, 0.0, 9.0), (900, 0.5, 14.0)]
)
def test_nobody_is_told_to_come_at_once_or_ever_so_late_and_not_all_together(
    owed: int, jitter: float, told_s: float
) -> None:
    door = Door(QuotaPolicy(100.0, burst_s=10.0), jitter=jitter)
    door.limits.charge(call(), 1000, 100.0)
    assert door.retry_s(call(), owed) == pytest.approx(told_s)


def test_nobody_is_told_to_come_later_than_in_two_minutes() -> None:
    door = Door(QuotaPolicy(1.0, burst_s=300.0))
    door.limits.charge(call(), 300, 100.0)
    assert door.retry_s(call(), 119) == pytest.approx(119.0)
    assert door.retry_s(call(), 200) == pytest.approx(120.0)


@pytest.mark.parametrize("left_s", [4.0, 0.01, -1.0])
def test_room_that_comes_after_the_deadline_is_told_as_well(left_s: float) -> None:
    door = Door(QuotaPolicy(100.0, burst_s=10.0))
    door.limits.charge(call(), 1000, 100.0)
    assert door.retry_s(call(in_s=left_s), 100) == pytest.approx(1.0)


def test_the_limits_are_checked_in_one_order_and_the_first_one_reached_is_told() -> None:
    door = Door(QuotaPolicy(100.0, burst_s=1.0), max_reply_bytes=1023)
    generating = GeneratingReplica("a", UNMEASURED, 100, ReplicaPolicy(), kv_tokens=4096, max_sequences=1)
    door.dispatcher.replicas["a"] = generating
    generating.began()
    generating.sent("b", 10, 99.8)
    generating.ended("b", 99.9, StepReport(10, 0.1, 0, 0.0, 0.0))
    door.limits.charge(call("a"), 100, 100.0)
    door.admission.charge(1000, refusable=False)
    large, small = Options(dimensions=256), Options(dimensions=255)

    def told(tenant: str, options: Options) -> str:
        asked = call(tenant, options=options)
        asked.text = Text(Sampling(), first_token_by_s=90.0)
        refusal = door.refusal(asked)
        assert refusal is not None
        return refusal.message

    assert "1024 bytes" in told("a", large)
    assert "rate" in told("a", small)
    assert "full" in told("b", small)
    door.admission.release(1000, refusable=False)
    assert "first_token_timeout" in told("b", small)


def test_who_has_used_its_rate_up_is_told_to_send_slower() -> None:
    door = Door(QuotaPolicy(10.0, burst_s=1.0))
    door.limits.charge(call("a"), 20, 100.0)
    told = door.refusal(call("a"))
    assert told is not None
    assert told.message == "the tenant's rate of tokens is used up: send slower"


def test_a_limits_holds_each_tenant_to_its_part_of_the_rate_that_the_settings_give_it() -> None:
    tenants = {
        "tokens_per_s": 200.0,
        "rates": {"b": 20.0},
    }
    settings = AggregatorSettings.model_validate({"tenants": tenants})
    door = Door()
    door.limits = make_limits(settings, lambda: 2)
    for tenant, burst in (("a", 200), ("b", 20)):
        door.limits.charge(call(tenant), burst - 10, 100.0)
        assert door.refusal(call(tenant), 10) is None
        assert "rate" in str(door.refusal(call(tenant), 11))


def test_without_a_rate_in_the_settings_no_tenant_is_held_to_any() -> None:
    door = Door()
    door.limits = make_limits(AggregatorSettings())
    door.limits.charge(call(), 10**9, 100.0)
    assert door.refusal(call()) is None
