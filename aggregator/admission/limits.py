"""Decide whether a call is admitted once its tokens are counted.

The limits are checked in this order, and the caller gets the error of the first one that is reached: the tenant's token
rate, the tokens that the model and the tenant hold, the time to the first token, the memory of the answer.
Before that a call can be refused by its source (credential, calls and bytes in flight, its message), by its route
(deadline, model, options) and by its token count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from math import inf

from aggregator.admission.bounds import Admission, Bound
from aggregator.admission.quotas import Quotas
from aggregator.errors import Overloaded, TokenbatchError
from aggregator.request.request import Failure, Request
from aggregator.scheduler.dispatcher import Dispatcher
from aggregator.scheduler.replica import Replica

_TICK_S = 1e-6  # no replica is infinitely fast
_SHORTEST_RETRY_S, _LONGEST_RETRY_S = (
    0.02,
    120.0,
)  # a round trip; no figure holds for longer
_MESSAGES = {
    Bound.MODEL: "the queue is full: try again later",
    Bound.TENANT: "the queue holds this tenant's share: try again later, or send less",
}


class AdmissionLimits:
    """The limits of all models and tenants. `jitter` in [0, 1) spreads the retries of refused callers."""

    def __init__(self, quotas: Quotas | None = None, *, jitter: Callable[[], float] = random.random) -> None:
        self._quotas = quotas or Quotas()
        self._jitter = jitter

    def refusal(
        self,
        request: Request,
        token_count: int,
        admission: Admission,
        dispatcher: Dispatcher,
        now_s: float,
        *,
        known_tokens: int = 0,
    ) -> Failure | None:
        """Why a call of `token_count` tokens is not admitted now, of which `known_tokens` need no computation.

        `dispatcher` has the replicas that could serve it.
        """
        error = self._reached(request, token_count, admission, dispatcher, now_s, known_tokens=known_tokens)
        if error is not None:
            return Failure.of(error)
        late = request.kind.refusal(request, token_count, dispatcher, now_s)
        if late is not None:
            return late
        try:
            request.source.reserve(request)
        except TokenbatchError as unheld:
            return Failure.of(unheld)
        return None

    def _reached(
        self,
        request: Request,
        token_count: int,
        admission: Admission,
        dispatcher: Dispatcher,
        now_s: float,
        *,
        known_tokens: int,
    ) -> TokenbatchError | None:
        tenant = request.tenant
        wait_s = self._quotas.wait_s(tenant, token_count, now_s)
        if wait_s:
            rested_s = self._quotas.rested_s(tenant, now_s)
            return self._overloaded("the tenant's rate of tokens is used up: send slower", wait_s, rested_s)
        full = None
        if not known_tokens or known_tokens < token_count:
            full = admission.full(tenant, token_count - known_tokens)
        if full is not None:
            tokens_per_s = admission.tokens_per_s(now_s) or _tokens_per_s(dispatcher.replicas.values()) or inf
            return self._overloaded(
                _MESSAGES[full.bound], full.excess_tokens / tokens_per_s, full.ahead_tokens / tokens_per_s
            )
        return None

    def charge(self, request: Request, token_count: int, now_s: float) -> None:
        self._quotas.charge(request.tenant, token_count, now_s)

    def _overloaded(self, message: str, room_s: float, open_s: float) -> Overloaded:
        """The error with a random retry delay: from `room_s`, when this call fits, to `open_s` later, when all do.

        It does not depend on the deadline of the call.
        """
        room_s = max(_SHORTEST_RETRY_S, room_s)
        return Overloaded(message, min(room_s + self._jitter() * max(room_s, open_s), _LONGEST_RETRY_S))


def _tokens_per_s(replicas: Collection[Replica]) -> float:
    """The throughput of all replicas in full steps, as far as it is known."""
    return sum(replica.token_budget / max(_TICK_S, replica.step_time_s(replica.token_budget)) for replica in replicas)
