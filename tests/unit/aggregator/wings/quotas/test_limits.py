"""A rate that is used up refuses calls, and says when it allows as much again."""

from __future__ import annotations

import pytest

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.limits import AdmissionLimits
from aggregator.settings.aggregator import AggregatorSettings
from aggregator.wings.quotas.buckets import QuotaPolicy, TokenBuckets
from aggregator.wings.quotas.rates import TenantRates
from tests.support.fake_source import KAFKA
from tests.unit.aggregator.admission.test_enqueue import NOW_S, request
from tests.unit.aggregator.admission.test_enqueue import Intake as Revision
from tests.unit.aggregator.admission.test_limits import Intake, call


def rate(tokens_per_s: float, burst_s: float) -> TokenBuckets:
    return TokenBuckets(QuotaPolicy(tokens_per_s, burst_s=burst_s))


def test_who_used_a_rate_up_is_told_to_come_when_it_allows_as_much_again() -> None:
    intake = Intake(rate(100.0, burst_s=10.0))
    intake.limits.charge(call(), 1000, 100.0)
    assert intake.retry_s(call(), 150) == pytest.approx(1.5)
    assert intake.refusal(call("b"), 150) is None


@pytest.mark.parametrize(
    ("owed", "jitter", "told_s"), [(1, 0.0, 0.02), (1, 0.5, 5.02), (900, 0.0, 9.0), (900, 0.5, 14.0)]
)
def test_nobody_is_told_to_come_at_once_or_ever_so_late_or_all_together(
    owed: int, jitter: float, told_s: float
) -> None:
    intake = Intake(rate(100.0, burst_s=10.0), jitter=jitter)
    intake.limits.charge(call(), 1000, 100.0)
    assert intake.retry_s(call(), owed) == pytest.approx(told_s)


def test_nobody_is_told_to_come_later_than_in_two_minutes() -> None:
    intake = Intake(rate(1.0, burst_s=300.0))
    intake.limits.charge(call(), 300, 100.0)
    assert intake.retry_s(call(), 119) == pytest.approx(119.0)
    assert intake.retry_s(call(), 200) == pytest.approx(120.0)


@pytest.mark.parametrize("left_s", [4.0, 0.01, -1.0])
def test_room_that_comes_after_the_deadline_is_told_as_well(left_s: float) -> None:
    intake = Intake(rate(100.0, burst_s=10.0))
    intake.limits.charge(call(), 1000, 100.0)
    assert intake.retry_s(call(in_s=left_s), 100) == pytest.approx(1.0)


def test_each_tenant_is_held_to_its_part_of_the_rate_in_the_settings() -> None:
    tenants = {
        "aggregators": "2",
        "tokens_per_s": 200.0,
        "rates": {"b": 20.0},
    }
    settings = AggregatorSettings.model_validate({"tenants": tenants})
    intake = Intake()
    intake.limits = AdmissionLimits(TenantRates(settings.tenants))
    for tenant, burst in (("a", 200), ("b", 20)):
        intake.limits.charge(call(tenant), burst - 10, 100.0)
        assert intake.refusal(call(tenant), 10) is None
        assert "rate" in str(intake.refusal(call(tenant), 11))


def test_kafkas_records_need_no_room_and_count_against_their_tenants_rate() -> None:
    intake = Revision(most=10, quotas=rate(10.0, burst_s=1.0))
    records = [request("1 1 1 1", source=KAFKA, tenant="a") for _ in range(4)]
    assert intake.put(*records) == []
    assert intake.admission.total == 24
    assert intake.put(request("1", tenant="a")) != []


def test_what_was_admitted_once_is_neither_refused_nor_charged_again() -> None:
    intake = Revision(most=10, quotas=rate(10.0, burst_s=1.0))
    one = request("1 1 1 1 1 1", tenant="a")
    intake.put(one)
    one.release()
    intake.put(request("1", tenant="b", source=KAFKA))
    assert intake.put(one) == []
    roomy = Admission(AdmissionPolicy(1000))
    told = intake.limits.refusal(request("1", tenant="a"), 2, roomy, intake.model_revision.dispatcher, NOW_S)
    assert told is None, "its eight tokens were charged twice"
