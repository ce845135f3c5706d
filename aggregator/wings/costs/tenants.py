"""Attribute the engines' time and tokens to tenants: one update per tenant and batch, or per tenant and step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from typing_extensions import override

from aggregator.errors import Code
from aggregator.observability.costs import NOBODY, REST, Costs
from aggregator.scheduler.work_item import WorkItem
from k8s.pod.metrics_buffer import MetricsBuffer

MAX_NAMED = 100
"""Tenants with series of their own; each has two per model and task, and a caller may make names up."""
OTHER = "other"
_NOBODY = "nobody"


class TenantCosts(Costs):
    """Two counters by tenant, model and task; used from the event loop's thread only.

    `named` tenants always have series of their own; of the other tenants, the first to come have them too.
    """

    def __init__(self, buffer: MetricsBuffer, named: Collection[str] = ()) -> None:
        labels = ("tenant", "model", "task")
        self._seconds = buffer.counter(
            "tokenbatch.engine", "s", "time of engine steps, divided among the tokens that they computed", *labels
        )
        self._tokens = buffer.counter(
            "tokenbatch.tokens", "{token}", "tokens of inputs, prompts and texts that were computed", *labels
        )
        self._labels = [OTHER, _NOBODY, *sorted(named)[:MAX_NAMED]]
        self._accounts = {tenant: account for account, tenant in enumerate(self._labels)}

    @override
    def account(self, tenant: str) -> int:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._labels) > MAX_NAMED + NOBODY:
                return REST
            account = self._accounts[tenant] = len(self._labels)
            self._labels.append(tenant)
        return account

    @override
    def computed(
        self, model: str, task: str, items: Sequence[WorkItem], failed_rows: Mapping[int, int], seconds: float
    ) -> None:
        """A batch was computed: divide `seconds`, its part of the step, by its tenants' tokens.

        `failed_rows`: codes by place. What failed in the engine (INTERNAL) is nobody's, and the engine never saw the
        others. The waiters of an item have equal parts of it, also callers who left after it was packed.
        """
        shares: defaultdict[str, float] = defaultdict(float)
        lost = 0
        for row, item in enumerate(items):
            code = failed_rows.get(row)
            if code is None:
                part = item.token_count / len(item.waiters)
                for query in item.waiters:
                    shares[query.tenant] += part
            elif code == Code.INTERNAL:
                lost += item.token_count
        each_s = seconds / (sum(shares.values()) + lost or 1.0)
        if lost:
            self.charge(model, task, NOBODY, lost * each_s)
        for tenant, tokens in shares.items():
            account = self.account(tenant)
            self._tokens.add(tokens, self._labels[account], model, task)
            self.charge(model, task, account, tokens * each_s)

    @override
    def count(self, model: str, task: str, tenant: str, tokens: int) -> None:
        self._tokens.add(tokens, self._labels[self.account(tenant)], model, task)

    @override
    def charge(self, model: str, task: str, account: int, seconds: float) -> None:
        self._seconds.add(seconds, self._labels[account if account < len(self._labels) else REST], model, task)
