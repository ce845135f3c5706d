"""A tenant gets its rate of tokens, divided among the aggregators that are ready."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.wings.quotas import buckets
from aggregator.wings.quotas.buckets import QuotaPolicy, TokenBuckets


def take(bucket: TokenBuckets, tenant: str, token_count: int, now_s: float) -> bool:
    if bucket.wait_s(tenant, token_count, now_s):
        return False
    bucket.charge(tenant, token_count, now_s)
    return True


def test_a_burst_is_taken_at_once_and_then_the_rate_counts() -> None:
    bucket = TokenBuckets(QuotaPolicy(default_rate=100.0, burst_s=2.0))
    assert take(bucket, "a", 200, 0.0)
    assert bucket.wait_s("a", 50, 0.0) == pytest.approx(0.5)
    assert not take(bucket, "a", 50, 0.4)
    assert take(bucket, "a", 50, 0.5)


def test_it_is_told_when_a_whole_burst_may_be_taken_again() -> None:
    bucket = TokenBuckets(QuotaPolicy(default_rate=100.0, rates={"quick": 500.0}, burst_s=2.0))
    assert bucket.rested_s("a", 0.0) == 0.0
    bucket.charge("a", 500, 0.0)
    bucket.charge("quick", 500, 0.0)
    assert [bucket.rested_s(tenant, 0.0) for tenant in ("a", "quick")] == [pytest.approx(5.0), pytest.approx(1.0)]
    assert bucket.rested_s("a", 4.0) == pytest.approx(1.0)
    assert TokenBuckets(QuotaPolicy()).rested_s("a", 0.0) == 0.0


def test_a_rest_refills_no_more_than_a_burst() -> None:
    bucket = TokenBuckets(QuotaPolicy(default_rate=100.0, burst_s=2.0))
    take(bucket, "a", 200, 0.0)
    assert take(bucket, "a", 200, 1000.0)
    assert not take(bucket, "a", 1, 1000.0)


def test_a_request_larger_than_the_burst_goes_into_debt() -> None:
    bucket = TokenBuckets(QuotaPolicy(default_rate=100.0, burst_s=1.0))
    assert take(bucket, "a", 500, 0.0)
    assert bucket.wait_s("a", 1, 0.0) == pytest.approx(4.01)


def test_tenants_do_not_share_and_may_have_rates_of_their_own() -> None:
    bucket = TokenBuckets(QuotaPolicy(default_rate=10.0, rates={"big": 1000.0, "free": inf}, burst_s=1.0))
    assert take(bucket, "a", 10, 0.0)
    assert not take(bucket, "a", 1, 0.0)
    assert take(bucket, "b", 10, 0.0)
    assert take(bucket, "big", 1000, 0.0)
    assert take(bucket, "free", 10**9, 0.0)


def test_the_rate_is_divided_among_the_aggregators_that_are_ready() -> None:
    ready = 1
    bucket = TokenBuckets(QuotaPolicy(default_rate=100.0, burst_s=1.0), lambda: ready)
    assert take(bucket, "a", 100, 0.0)
    ready = 4
    assert bucket.wait_s("a", 25, 0.0) == pytest.approx(1.0)
    ready = 0
    assert bucket.wait_s("a", 25, 0.0) == pytest.approx(0.25)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 80)), min_size=1, max_size=100))
def test_no_more_is_taken_than_the_rate_and_one_burst(steps: list[tuple[float, int]]) -> None:
    bucket = TokenBuckets(QuotaPolicy(default_rate=50.0, burst_s=2.0))
    now_s, taken = 0.0, 0
    for pause_s, token_count in steps:
        now_s += pause_s
        taken += token_count * take(bucket, "a", token_count, now_s)
    assert taken <= 100 + 50 * now_s + 1e-6


def test_tenants_that_went_away_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_SWEEP_AT", 8)
    bucket = TokenBuckets(QuotaPolicy(default_rate=10.0, burst_s=1.0))
    take(bucket, "owes", 10_000, 0.0)
    for number in range(1000):
        take(bucket, str(number), 1, float(number))
    assert len(bucket._buckets) <= 8  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert bucket.wait_s("owes", 1, 900.0)


def test_only_tenants_whose_bucket_is_full_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_SWEEP_AT", 4)
    bucket = TokenBuckets(QuotaPolicy(default_rate=10.0, rates={"quick": 100.0, "quickly rested": 100.0}, burst_s=2.0))
    bucket.charge("quick", 150, 100.0)
    bucket.charge("quickly rested", 90, 100.0)
    bucket.charge("slow", 15, 100.0)
    bucket.charge("just rested", 10, 100.0)
    bucket.charge("newcomer", 0, 101.0)  # a second later the buckets of two of them are full again
    assert _remembered(bucket) == {"quick", "slow", "newcomer"}
    assert bucket.wait_s("quick", 200, 101.0) == pytest.approx(0.5)
    assert bucket.wait_s("slow", 20, 101.0) == pytest.approx(0.5)


def test_tenants_that_all_owe_are_looked_through_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_SWEEP_AT", 4)
    bucket = TokenBuckets(QuotaPolicy(default_rate=1.0, burst_s=1.0))
    for number in range(5):  # the fifth looks through four, who all owe: again at eight
        bucket.charge(f"owes {number}", 1000, 0.0)
    bucket.charge("rests", 1, 0.0)
    for number in range(2):
        bucket.charge(f"owes more {number}", 1000, 10.0)
    assert "rests" in _remembered(bucket)
    bucket.charge("ninth", 1000, 10.0)
    assert "rests" not in _remembered(bucket)


def _remembered(bucket: TokenBuckets) -> set[str]:
    return set(bucket._buckets)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def test_a_full_bucket_makes_nobody_wait_and_an_empty_one_until_it_fills() -> None:
    bucket = TokenBuckets(QuotaPolicy(default_rate=10.0, burst_s=3.0))
    assert bucket.wait_s("a", 30, 5.0) == 0.0
    bucket.charge("a", 30, 5.0)
    assert bucket.wait_s("a", 30, 5.0) == pytest.approx(3.0)
    assert bucket.wait_s("a", 1000, 5.0) == pytest.approx(3.0)
    assert bucket.wait_s("a", 30, 7.0) == pytest.approx(1.0)


def test_a_rate_for_one_tenant_alone_limits_nobody_else() -> None:
    bucket = TokenBuckets(QuotaPolicy(rates={"a": 10.0}, burst_s=1.0))
    bucket.charge("a", 10, 0.0)
    bucket.charge("b", 10**9, 0.0)
    assert bucket.wait_s("a", 1, 0.0) == pytest.approx(0.1)
    assert bucket.wait_s("b", 1, 0.0) == 0.0
