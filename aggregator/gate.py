"""Decide whether a call whose tokens are counted is taken: by the bounds, the tenant's rate and the outlook."""

from __future__ import annotations

import random
from collections.abc import Callable

from aggregator.core.admission import Admission, Bound, Full
from aggregator.core.outlook import Forecast, Outlook
from aggregator.core.quotas import Quotas
from aggregator.errors import Expired, InvalidRequest, Overloaded, TokenbatchError
from aggregator.request import Request
from aggregator.vectors import vector_bytes

_UNMEASURED_RETRY_S = 0.1
_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 0.02, 5.0
_MESSAGES = {
    Bound.MODEL: "the queue is full: try again later",
    Bound.TENANT: "the queue holds this tenant's share: try again later, or send less",
}


class Gate:
    """The quotas of all tenants, and what a refused caller is told. `jitter` in [0, 1) spreads the retries."""

    def __init__(
        self, quotas: Quotas, *, max_reply_bytes: int = 16 * 1024 * 1024, jitter: Callable[[], float] = random.random
    ) -> None:
        """`max_reply_bytes`: of the vectors that answer one call."""
        self._quotas = quotas
        self._max_reply_bytes = max_reply_bytes
        self._jitter = jitter

    def refusal(
        self,
        request: Request,
        token_count: int,
        admission: Admission,
        outlook: Outlook,
        found: Forecast | None,
        *,
        now_s: float,
    ) -> TokenbatchError | None:
        """Why a call of so many tokens is not taken now."""
        reply_bytes = len(request.inputs) * vector_bytes(request.options.dimensions, request.options.encoding)
        if reply_bytes > self._max_reply_bytes:
            return InvalidRequest(
                f"the vectors would have {reply_bytes} bytes: at most {self._max_reply_bytes} are sent;"
                " ask for fewer inputs, fewer dimensions or a smaller encoding"
            )
        tenant = request.tenant
        wait_s = self._quotas.wait_s(tenant, token_count, now_s)
        if wait_s:
            return self._overloaded("the tenant's rate of tokens is used up: send slower", wait_s, request, now_s)
        full = admission.full(tenant, token_count)
        if full is not None:
            return self._overloaded(_MESSAGES[full.bound], _drained_s(full, found), request, now_s)
        if found is not None and outlook.is_late(found, request.priority, tenant, request.deadline_s, token_count):
            return Expired("the deadline cannot be met: what is queued before it takes longer")
        return None

    def charge(self, request: Request, token_count: int, now_s: float) -> None:
        """Take a request's tokens off its tenant's rate, whatever its source."""
        self._quotas.charge(request.tenant, token_count, now_s)

    def _overloaded(self, message: str, wait_s: float, request: Request, now_s: float) -> Overloaded:
        """Not all at once, and not so late that nothing is left of the caller's time."""
        retry_s = min(_LONGEST_RETRY_S, max(_SHORTEST_RETRY_S, wait_s)) * (1.0 + self._jitter())
        return Overloaded(message, max(_SHORTEST_RETRY_S / 2, min(retry_s, (request.deadline_s - now_s) / 2)))


def _drained_s(full: Full, found: Forecast | None) -> float:
    return full.excess_tokens / found.tokens_per_s if found is not None else _UNMEASURED_RETRY_S
