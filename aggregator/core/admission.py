"""Bound what one model holds, in tokens per source, class and tenant, so that nobody's work locks anybody else out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from aggregator.core.query import Priority, Source
from aggregator.core.shares import FACTOR, excess


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """`max_tokens` is the whole bound; a class from Kafka stops at its share of it.

    It starts again below `resume_share` of where it stopped, so that intake does not flutter. A tenant's calls
    may hold `tenant_factor` times as many tokens as are free.
    """

    max_tokens: int
    kafka_shares: tuple[float, float, float] = (1.0, 0.75, 0.5)
    resume_share: float = 0.8
    tenant_factor: float = FACTOR


class Bound(StrEnum):
    """Which bound a call's tokens do not fit."""

    MODEL = "model"  # all that the model may hold is held
    TENANT = "tenant"  # the tenant holds its share, and the rest is kept for others


@dataclass(frozen=True, slots=True)
class Full:
    """A bound that is reached, and how many tokens must leave until the call fits."""

    bound: Bound
    excess_tokens: int


class Admission:
    """Tokens held by one model: from intake until the answer is acknowledged.

    A tenant's calls are held to a share that moves with what is free (`shares.excess`). Calls without a tenant know
    the whole bound only.
    """

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy
        self._total = 0
        self._stopped: set[Priority] = set()
        self._called: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Tokens held, all sources and classes."""
        return self._total

    @property
    def holds_calls(self) -> bool:
        """Whether some of them came by gRPC."""
        return bool(self._called)

    def full(self, tenant: str, token_count: int) -> Full | None:
        """Which bound keeps out a gRPC request of so many tokens, if any; one alone always fits."""
        if not self._total:
            return None
        free = self._policy.max_tokens - self._total
        factor = self._policy.tenant_factor
        of_tenant = excess(self._called.get(tenant, 0), token_count, free, factor) if tenant else 0.0
        if token_count - free >= of_tenant:
            return Full(Bound.MODEL, token_count - free) if token_count > free else None
        return Full(Bound.TENANT, ceil(of_tenant)) if of_tenant > 0 else None

    def charge(self, source: Source, token_count: int, tenant: str = "") -> None:
        """Count a request's tokens in. What Kafka delivered is never refused: intake stops before."""
        self._total += token_count
        if source is Source.GRPC:
            self._called[tenant] = self._called.get(tenant, 0) + token_count

    def release(self, source: Source, token_count: int, tenant: str = "") -> None:
        """Count a request's tokens out, once its answer is acknowledged."""
        self._total -= token_count
        assert self._total >= 0, "More tokens were released than were held. This is a bug."
        if source is Source.GRPC:
            left = self._called.pop(tenant, 0) - token_count  # none is there after calls without a token
            if left:
                self._called[tenant] = left

    def is_filled(self, token_count: int) -> bool:
        """Whether so many tokens are all that may be held."""
        return token_count >= self._policy.max_tokens

    def stopped(self) -> frozenset[Priority]:
        """The classes that Kafka intake must not bring more of now."""
        for priority, share in zip(Priority, self._policy.kafka_shares, strict=True):
            limit = share * self._policy.max_tokens
            if self._total >= limit:
                self._stopped.add(priority)
            elif self._total < limit * self._policy.resume_share:
                self._stopped.discard(priority)
        return frozenset(self._stopped)
