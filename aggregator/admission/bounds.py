"""Share one limit fairly among its holders, so that no holder keeps the others out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf

from aggregator.scheduler.rates import Drain
from aggregator.scheduler.work_item import Priority

FACTOR = 4.0  # one holder alone gets four fifths of the limit, and the next one finds a fifth free


def excess(held: int, amount: int, free: float, factor: float = FACTOR) -> float:
    """How much one holder must release until `amount` more fits its share; 0 or less: it fits now.

    A share is `factor` times what is free (Choudhury and Hahne, "Dynamic queue length thresholds", 1998): one holder
    alone can have `factor / (factor + 1)` of the limit, and the next one as much of the rest. In whole numbers a
    few holders leave nothing. Each release lowers the amount held, and raises the amount free.
    """
    return (held + amount - factor * free) / (1.0 + factor)


class Address(str):
    """A holder that may be many callers behind one proxy. The holder after it has its share of what this one may take.

    Alone it has all but a sixteenth of a limit.
    """

    __slots__ = ()


_ADDRESS_FACTOR = 15.0
_OF_AN_ADDRESS = 64.0 / 11.0
"""The factor of a connection beside others of its address: alone it has four fifths of the limit, as any holder."""


class SharedBound:
    """One limit, and how much of it each holder has.

    An amount can count for several holders at once, such as an address and its connection. The last `reserve` is for
    those that have nothing yet: as many of them as it is large find room, whatever the others hold.
    """

    def __init__(self, most: int, reserve: int = 0) -> None:
        self.total = 0
        self._most = most
        self._reserve = reserve
        self._all_fit = most // 2 - reserve
        """Up to so much in total every share has room, whoever has it: the largest holder leaves half of the limit."""
        self._held: dict[str, int] = {}

    @property
    def holders(self) -> int:
        return len(self._held)

    def held(self, holder: str) -> int:
        return self._held.get(holder, 0)

    def has_room(self, amount: int) -> bool:
        """Whether `amount` more fits the limit; the first one always does."""
        return not self.total or self.total + amount <= self._most

    def fits_share(self, holders: Sequence[str], amount: int) -> bool:
        """Whether `amount` more fits the share of each; the last is the one that may use the reserve."""
        if not self.total or self.total + amount <= self._all_fit:
            return True
        free: float = self._most - self.total
        if self._held.get(holders[-1]):
            free -= self._reserve
        factor = FACTOR
        for holder in holders:
            held = self._held.get(holder, 0)
            if isinstance(holder, Address):
                free, factor = -excess(held, 0, free, _ADDRESS_FACTOR), _OF_AN_ADDRESS
                if amount > free:
                    return False
            elif excess(held, amount, free, factor) > 0:
                return False
        return True

    def take(self, holders: Iterable[str], amount: int) -> None:
        self.total += amount
        held = self._held
        for holder in holders:
            held[holder] = held.get(holder, 0) + amount

    def also_count_for(self, holder: str, amount: int) -> None:
        """Attribute an `amount` that is held already to one more holder."""
        self._held[holder] = self._held.get(holder, 0) + amount

    def give_back(self, holders: Iterable[str], amount: int) -> None:
        self.total -= amount
        for holder in holders:
            left = self._held.get(holder, 0) - amount
            if left:
                self._held[holder] = left
            else:
                self._held.pop(holder, None)


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """`max_tokens`: the limit of one model. Intake of a priority class from brokers stops at its share of it.

    Intake starts again below `resume_share` of where it stopped (hysteresis); so do the calls of a tenant. These may
    hold `tenant_factor` times as many tokens as are free.
    """

    max_tokens: int
    intake_shares: tuple[float, float, float] = (1.0, 0.75, 0.5)
    resume_share: float = 0.8
    tenant_factor: float = FACTOR


class Bound(StrEnum):
    """The limit that refused a call."""

    MODEL = "model"  # the model holds as many tokens as it may
    TENANT = "tenant"  # the tenant holds its share; the rest is kept for others


@dataclass(frozen=True, slots=True)
class Full:
    """A limit that is reached, the tokens to release until the call fits, and the tokens served before it."""

    bound: Bound
    excess_tokens: int
    ahead_tokens: int


class Admission:
    """The tokens that one model holds: from intake until the reply is delivered.

    The calls of a tenant are held to a share that depends on what is free (`excess`), calls without a tenant to the
    limit of the model only.
    """

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy
        self.total = 0
        self.released = 0
        self._stopped: frozenset[Priority] = frozenset()
        self._resumes_below = self._stops_at = 0.0
        self._calls = SharedBound(policy.max_tokens)
        self._closed: set[str] = set()
        self._drain = Drain()

    @property
    def limit(self) -> int:
        """The tokens that may be held at a time."""
        return self._policy.max_tokens

    def intake_limit(self, priority: Priority) -> float:
        """The tokens from which brokers' requests of this class are not taken in."""
        return self._policy.max_tokens * self._policy.intake_shares[priority]

    @property
    def holds_calls(self) -> bool:
        """Whether some of them are of calls, by gRPC or HTTP."""
        return self._calls.holders > 0

    def full(self, tenant: str, token_count: int) -> Full | None:
        """The limit that a call of `token_count` tokens does not fit, if any; a call fits whenever nothing is held.

        A tenant that was refused is refused until it holds well less than its limit: else callers that call again as
        soon as they are answered would take all room from callers that wait for their retry delay.
        """
        if not self.total:
            return None
        held = self._calls.held(tenant)
        bound, over = self._excess(tenant, held, token_count, closed=tenant in self._closed)
        if over <= 0:
            self._closed.discard(tenant)
            return None
        if held:
            self._closed.add(tenant)
            bound, over = self._excess(tenant, held, token_count, closed=True)
        # Tenants are served in turn: while one tenant's tokens are served, so are as many of each other's.
        called = self._calls.total
        ahead = min(called, held * self._calls.holders) or called or self.total
        return Full(bound, over, ahead)

    def _excess(self, tenant: str, held: int, token_count: int, *, closed: bool) -> tuple[Bound, int]:
        """The limit that decides for a tenant, and how many tokens must be released until `token_count` more fit."""
        open_share = self._policy.resume_share if closed else 1.0
        free = self._policy.max_tokens - self.total
        of_model, of_tenant = token_count - free, 0.0
        if tenant:
            share = open_share * self._policy.tenant_factor / (1.0 + self._policy.tenant_factor)  # when it is alone
            of_tenant = excess(held, token_count, free, share / (1.0 - share))
        elif closed:
            of_model += ceil((1.0 - open_share) * (free + self._calls.total))
        return (Bound.MODEL, of_model) if of_model >= of_tenant else (Bound.TENANT, ceil(of_tenant))

    def tokens_per_s(self, now_s: float) -> float | None:
        """The rate at which tokens are released, measured between refusals; None until it is known."""
        return self._drain.tokens_per_s(self.released, now_s)

    def charge(self, token_count: int, tenant: str = "", *, refusable: bool) -> None:
        """Count the tokens of a request in. Requests of brokers are not `refusable`: their source is paused instead."""
        self.total += token_count
        if refusable:
            self._calls.take((tenant,), token_count)

    def release(self, token_count: int, tenant: str = "", *, refusable: bool) -> None:
        """Count the tokens of a request out, once its reply is delivered."""
        self.total -= token_count
        self.released += token_count
        assert self.total >= 0, "More tokens were released than were held. This is a bug."
        if refusable:
            self._calls.give_back((tenant,), token_count)
            if not self._calls.held(tenant):
                self._closed.discard(tenant)

    def is_filled(self, token_count: int) -> bool:
        return token_count >= self._policy.max_tokens

    def stopped(self) -> frozenset[Priority]:
        """The classes whose intake is stopped; looked up again only where a limit was passed."""
        if not self._resumes_below <= self.total < self._stops_at:
            before, resume_share = self._stopped, self._policy.resume_share
            limits = {
                priority: share * self._policy.max_tokens
                for priority, share in zip(Priority, self._policy.intake_shares, strict=True)
            }
            self._stopped = frozenset(
                priority
                for priority, limit in limits.items()
                if self.total >= (limit * resume_share if priority in before else limit)
            )
            stopped = [limits.pop(priority) for priority in self._stopped]
            self._resumes_below = max(stopped, default=0.0) * resume_share
            self._stops_at = min(limits.values(), default=inf)
        return self._stopped
