"""Share one bound among all who ask for room, so that nobody's use of it locks anybody else out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from aggregator.scheduler.rates import Drain
from aggregator.scheduler.work_item import Priority

FACTOR = 4.0


def excess(held: int, amount: int, free: int, factor: float = FACTOR) -> float:
    """How much of what one holds must leave until `amount` more fits its share; none does: 0 or less.

    A share is `factor` times what is free (Choudhury and Hahne, "Dynamic queue length thresholds", 1998): alone one
    has `factor / (factor + 1)` of the bound, and however many flood, some of it stays free for the first of another.
    What leaves is taken off what is held, and added to what is free.
    """
    return (held + amount - factor * free) / (1.0 + factor)


class SharedBound:
    """One bound, and how much of it each of those holds who share it.

    What is taken can be put down to several at once: a tenant, say, and the connection it came by.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self._most = most
        self._held: dict[str, int] = {}

    @property
    def holders(self) -> int:
        """How many hold some of it."""
        return len(self._held)

    def has_room(self, amount: int) -> bool:
        """Whether so much more fits the bound; one alone always does."""
        return not self.total or self.total + amount <= self._most

    def fits_share(self, holders: Iterable[str], amount: int) -> bool:
        """Whether so much more fits the share of each of them."""
        if not self.total:
            return True
        free = self._most - self.total
        for holder in holders:  # noqa: SIM110 - a generator takes as long as all the rest
            if excess(self._held.get(holder, 0), amount, free) > 0:
                return False
        return True

    def take(self, holders: Iterable[str], amount: int) -> None:
        """Count it in, whether or not it fits."""
        self.total += amount
        held = self._held
        for holder in holders:
            held[holder] = held.get(holder, 0) + amount

    def put_down_to(self, holder: str, amount: int) -> None:
        """Hold one more to account for what was taken."""
        self._held[holder] = self._held.get(holder, 0) + amount

    def give_back(self, holders: Iterable[str], amount: int) -> None:
        """Count it out."""
        self.total -= amount
        for holder in holders:
            left = self._held.get(holder, 0) - amount
            if left:
                self._held[holder] = left
            else:
                self._held.pop(holder, None)


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """`max_tokens` is the whole bound; a class from Kafka stops at its share of it.

    It starts again below `resume_share` of where it stopped, so that intake does not flutter; so do calls. A tenant's
    calls may hold `tenant_factor` times as many tokens as are free.
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
    """A bound that is reached, how many tokens must leave until the call fits, and how many are served before it."""

    bound: Bound
    excess_tokens: int
    ahead_tokens: int


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
        self._called_total = 0
        self._closed: set[str] = set()
        self._left = 0
        self._drain = Drain()

    @property
    def total(self) -> int:
        """Tokens held, all sources and classes."""
        return self._total

    @property
    def holds_calls(self) -> bool:
        """Whether some of them belong to callers who wait."""
        return bool(self._called)

    def full(self, tenant: str, token_count: int) -> Full | None:
        """Which bound keeps out a gRPC request of so many tokens, if any; one alone always fits.

        A tenant that was kept out stays so until well below its bound: else all room would go to those of its callers
        who ask again as soon as they are answered, and none to those who were told to wait.
        """
        if not self._total:
            return None
        held = self._called.get(tenant, 0)
        bound, over = self._excess(tenant, held, token_count, closed=tenant in self._closed)
        if over <= 0:
            self._closed.discard(tenant)
            return None
        if held:
            self._closed.add(tenant)
            bound, over = self._excess(tenant, held, token_count, closed=True)
        # While a tenant's tokens are served, as many of each other tenant's are.
        ahead = min(self._called_total, held * len(self._called)) or self._called_total or self._total
        return Full(bound, over, ahead)

    def _excess(self, tenant: str, held: int, token_count: int, *, closed: bool) -> tuple[Bound, int]:
        """How much of what a tenant holds must leave until so many tokens more fit."""
        open_share = self._policy.resume_share if closed else 1.0
        free = self._policy.max_tokens - self._total
        of_model, of_tenant = token_count - free, 0.0
        if tenant:
            share = open_share * self._policy.tenant_factor / (1.0 + self._policy.tenant_factor)  # when it is alone
            of_tenant = excess(held, token_count, free, share / (1.0 - share))
        elif closed:
            of_model += ceil((1.0 - open_share) * (free + self._called_total))
        return (Bound.MODEL, of_model) if of_model >= of_tenant else (Bound.TENANT, ceil(of_tenant))

    def tokens_per_s(self, now_s: float) -> float | None:
        """How fast tokens leave, to be asked whenever a call is refused; None until that is known."""
        return self._drain.tokens_per_s(self._left, now_s)

    def charge(self, token_count: int, tenant: str = "", *, refusable: bool) -> None:
        """Count a request's tokens in. What is not refusable never is: its source is paused before."""
        self._total += token_count
        if refusable:
            self._called[tenant] = self._called.get(tenant, 0) + token_count
            self._called_total += token_count

    def release(self, token_count: int, tenant: str = "", *, refusable: bool) -> None:
        """Count a request's tokens out, once its reply is delivered."""
        self._total -= token_count
        self._left += token_count
        assert self._total >= 0, "More tokens were released than were held. This is a bug."
        if refusable:
            self._called_total -= token_count
            left = self._called.pop(tenant, 0) - token_count  # none is there after calls without a token
            if left:
                self._called[tenant] = left
            else:
                self._closed.discard(tenant)

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
