"""The limits of generations."""

from __future__ import annotations

from math import inf

from aggregator.scheduler.replica import ReplicaPolicy, StepReport
from aggregator.scheduler.speed import UNMEASURED
from aggregator.wings.generation.generation import Generation
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.replica import GeneratingReplica
from aggregator.wings.quotas.buckets import QuotaPolicy, TokenBuckets
from protos.generation.v1.generation_pb2 import Sampling
from tests.unit.aggregator.admission.test_limits import Intake, call, full_source


def test_limits_are_checked_in_one_order_and_the_first_reached_is_told() -> None:
    intake = Intake(TokenBuckets(QuotaPolicy(100.0, burst_s=1.0)))
    generating = GeneratingReplica("a", UNMEASURED, 100, ReplicaPolicy(), kv_tokens=4096, max_sequences=1)
    intake.dispatcher.replicas["a"] = generating
    generating.began()
    generating.sent("b", 10, 99.8)
    generating.ended("b", 99.9, StepReport(10, 0.1, 0, 0.0, 0.0))
    intake.limits.charge(call("a"), 100, 100.0)
    intake.admission.charge(1000, refusable=False)

    def told(tenant: str, *, first_token_by_s: float = 90.0) -> str:
        asked = call(tenant, source=full_source())
        asked.kind, asked.details = GENERATION, Generation(Sampling(), first_token_by_s=first_token_by_s)
        refusal = intake.refusal(asked)
        assert refusal is not None
        return refusal.message

    assert "rate" in told("a")
    assert "full" in told("b")
    intake.admission.release(1000, refusable=False)
    assert "first_token_timeout" in told("b")
    assert told("b", first_token_by_s=inf) == "no room"
