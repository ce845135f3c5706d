"""Who is taken and who is refused by the admission limits, in virtual time."""

from __future__ import annotations

import asyncio
import random
from math import inf

import pytest

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.quotas import Quotas
from aggregator.errors import Code, Overloaded
from aggregator.request.request import Failure, Request
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.dispatcher import Dispatcher, DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.work_item import Priority
from tests.support.fake_source import GRPC, FakeSource, any_request
from tests.support.faked_pipeline import FakedPipeline, new_engine
from tests.support.virtual_time import in_virtual_time

TEN_TOKENS = "5 " * 8
NO_SHARING = QueuePolicy(coalesce=False)


def failed(request: Request) -> Failure:
    [outcome] = request.outcomes
    assert isinstance(outcome, Failure)
    return outcome


class Obedient:
    """A caller that comes again when it was told to."""

    def __init__(self, faked: FakedPipeline, tenant: str = "") -> None:
        self.refusals = 0
        self.answers = 0
        self._world = faked
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
@in_virtual_time
async def test_who_returns_when_told_asks_a_few_times_at_a_queue_of_ten_seconds(tenant: str) -> None:
    faked = FakedPipeline(new_engine(slowness=330.0), max_held_tokens=1000, queue=NO_SHARING)  # 100 tokens a second
    faked.pipeline._limits = AdmissionLimits(jitter=random.Random(1).random)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    async with faked.started():
        others = [asyncio.ensure_future(Obedient(faked, tenant).ask_on()) for _ in range(110)]
        await asyncio.sleep(15)
        callers = [Obedient(faked, tenant) for _ in range(8)]
        for caller in callers:
            await caller.ask()
        refusals = [caller.refusals for caller in callers]
        assert sum(refusals) <= 3 * len(callers)
        assert max(refusals) <= 15
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@in_virtual_time
async def test_under_overload_deadlines_are_kept_and_nothing_late_is_computed() -> None:
    engine = new_engine()  # 100 tokens take 3 ms: ten calls
    async with FakedPipeline(engine, queue=NO_SHARING).started() as faked:
        await faked.embed(TEN_TOKENS)
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        ends: dict[Code, list[float]] = {Code.OK: [], Code.DEADLINE_EXCEEDED: []}

        async def call() -> None:
            request = await faked.embed(TEN_TOKENS, in_s=0.1)
            ends[request.code].append(loop.time() - start_s)

        await asyncio.gather(*(call() for _ in range(900)))
    assert len(ends[Code.OK]) > 250
    assert max(ends[Code.OK]) < 0.1
    assert max(ends[Code.DEADLINE_EXCEEDED]) < 0.11
    computed = sum(batch.query_count for batch in engine.batches) - 1
    assert computed == len(ends[Code.OK])


def call(tenant: str = "a", *, in_s: float = inf, source: FakeSource = GRPC) -> Request:
    """A call that was received at 100 s."""
    return any_request(
        "x", priority=Priority.INTERACTIVE, tenant=tenant, received_s=100.0, deadline_s=100.0 + in_s, source=source
    )


def full_source() -> FakeSource:
    """Whose answers have no room."""

    def refuse(request: Request) -> None:
        del request
        raise Overloaded("no room", 0.5)

    return FakeSource("grpc", refusable=True, on_reserve=refuse)


class Intake:
    """The limits with all they look at: a bound of 1,000 tokens, one replica of 10,000 tokens/s."""

    def __init__(self, quotas: Quotas | None = None, *, jitter: float = 0.0) -> None:
        self.limits = AdmissionLimits(quotas, jitter=lambda: jitter)
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


def test_an_answer_without_room_is_refused_and_one_with_room_is_held_once() -> None:
    source = full_source()
    told = Intake().refusal(call(source=source))
    assert told == Failure(Code.RESOURCE_EXHAUSTED, "no room", retryable=True, retry_after_s=0.5)
    held: list[Request] = []
    source.on_reserve = held.append
    asked = call(source=source)
    assert Intake().refusal(asked) is None
    assert held == [asked]


def test_a_full_model_and_a_full_tenants_share_are_told_apart() -> None:
    intake = Intake()
    intake.admission.charge(800, "a", refusable=True)
    assert "tenant's share" in str(intake.refusal(call("a"), 10))
    intake.admission.charge(200, refusable=False)
    assert "the queue is full" in str(intake.refusal(call("b"), 10))


def test_who_finds_the_model_full_is_told_to_come_when_there_will_be_room() -> None:
    intake = Intake()
    intake.admission.charge(5000, refusable=False)
    assert intake.retry_s(call("b"), 1000) == pytest.approx(5000 / 10_000)
    del intake.dispatcher.replicas["a"]
    assert intake.retry_s(call("b"), 1000) == pytest.approx(0.02)


def test_the_refused_are_told_to_come_while_their_tenants_work_is_served() -> None:
    for jitter in (0.0, 0.5, 1.0):
        intake = Intake(jitter=jitter)
        intake.admission.charge(800, "a", refusable=True)
        intake.admission.charge(100, "b", refusable=True)
        # 80 % of the share of 80 %; 1,600 tokens are served meanwhile, or all 900 that there are
        assert intake.retry_s(call("a"), 10) == pytest.approx(0.0228 + jitter * 0.09, abs=1e-4)


def test_what_leaves_during_refusals_says_more_than_what_replicas_can_do() -> None:
    intake = Intake()
    intake.admission.charge(1000, "a", refusable=True)
    assert intake.retry_s(call("a"), 10) < 0.1
    intake.admission.release(50, "a", refusable=True)
    assert intake.retry_s(call("a"), 310, now_s=100.5) == pytest.approx((0.36 * 1260 - 0.64 * 50) / 100, abs=0.01)
