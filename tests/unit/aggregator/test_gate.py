"""Who is taken and who is refused at the gate, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

from aggregator.core.query import Source
from aggregator.core.queue import QueuePolicy
from aggregator.core.quotas import QuotaPolicy, Quotas
from aggregator.errors import Code
from aggregator.gate import Gate
from aggregator.request import Failure, Request
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
