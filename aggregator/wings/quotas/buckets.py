"""Hold each tenant to this aggregator's part of its token rate, by a token bucket that may go below zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from typing_extensions import override

from aggregator.admission.quotas import Quotas

_SWEEP_AT = 4096  # tenants; a sweep over them takes two milliseconds


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """Tokens per second of all aggregators together: `rates` by tenant, `default_rate` for all others.

    `burst_s`: seconds of the rate that a full bucket holds.
    """

    default_rate: float = inf
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    burst_s: float = 2.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_s: float


class TokenBuckets(Quotas):
    """The bucket of each tenant. Its rate is divided by the number of `ready_aggregators`."""

    def __init__(self, policy: QuotaPolicy, ready_aggregators: Callable[[], int] = lambda: 1) -> None:
        self._policy = policy
        self._limits = bool(policy.rates) or policy.default_rate != inf
        self._ready_aggregators = ready_aggregators
        self._buckets: dict[str, _Bucket] = {}
        self._sweep_at = _SWEEP_AT

    @override
    def wait_s(self, tenant: str, token_count: int, now_s: float) -> float:
        """A request larger than the bucket fits a full one, and leaves it below zero."""
        rate = self._rate(tenant) if self._limits else inf
        if rate == inf:
            return 0.0
        needed = min(float(token_count), rate * self._policy.burst_s)
        return max(0.0, (needed - self._filled(tenant, rate, now_s).tokens) / rate)

    @override
    def rested_s(self, tenant: str, now_s: float) -> float:
        rate = self._rate(tenant)
        if rate == inf:
            return 0.0
        return self._policy.burst_s - self._filled(tenant, rate, now_s).tokens / rate

    @override
    def charge(self, tenant: str, token_count: int, now_s: float) -> None:
        if self._limits and (rate := self._rate(tenant)) != inf:
            self._filled(tenant, rate, now_s).tokens -= token_count

    def _rate(self, tenant: str) -> float:
        """Tokens per second of this aggregator's part."""
        whole = self._policy.rates.get(tenant, self._policy.default_rate)
        return whole / max(1, self._ready_aggregators())

    def _filled(self, tenant: str, rate: float, now_s: float) -> _Bucket:
        most = rate * self._policy.burst_s
        bucket = self._buckets.get(tenant)
        if bucket is None:
            self._forget_full(now_s)
            bucket = self._buckets[tenant] = _Bucket(most, now_s)
        bucket.tokens = min(most, bucket.tokens + (now_s - bucket.filled_s) * rate)
        bucket.filled_s = now_s
        return bucket

    def _forget_full(self, now_s: float) -> None:
        """Drop buckets that are full by now: the number of tenants has no limit."""
        if len(self._buckets) < self._sweep_at:
            return
        self._buckets = {
            tenant: bucket
            for tenant, bucket in self._buckets.items()
            if bucket.tokens + (now_s - bucket.filled_s) * self._rate(tenant)
            < self._rate(tenant) * self._policy.burst_s
        }
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._buckets))
