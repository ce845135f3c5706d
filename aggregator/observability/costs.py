"""Attribute the engines' time and tokens to tenants: one update per tenant and batch, or per tenant and step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aggregator.scheduler.work_item import Task, WorkItem
from k8s.pod.metrics_buffer import MetricsBuffer

MAX_NAMED = 100
"""Tenants with series of their own; each has two per model and task, and a caller may make names up."""
OTHER = "other"
REST = 0
"""The account of all other tenants, and of the aggregator's own probes."""


class Costs:
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
        self._labels = [OTHER, *sorted(named)[:MAX_NAMED]]
        self._accounts = {tenant: account for account, tenant in enumerate(self._labels)}

    def account(self, tenant: str) -> int:
        """The number under which a tenant is charged."""
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._labels) > MAX_NAMED:
                return REST
            account = self._accounts[tenant] = len(self._labels)
            self._labels.append(tenant)
        return account

    def computed(
        self, model: str, task: str, items: Sequence[WorkItem], failed_rows: Collection[int], seconds: float
    ) -> None:
        """A batch was computed but for `failed_rows`: divide `seconds`, its part of the step, by its tenants' tokens.

        The waiters of an item have equal parts of it, also callers who left after it was packed.
        """
        shares: dict[str, float] = {}
        for row, item in enumerate(items):
            if row not in failed_rows:
                part = item.token_count / len(item.waiters)
                for query in item.waiters:
                    tenant = query.tenant
                    shares[tenant] = shares.get(tenant, 0.0) + part
        each_s = seconds / (sum(shares.values()) or 1.0)
        for tenant, tokens in shares.items():
            account = self.account(tenant)
            self._tokens.add(tokens, self._labels[account], model, task)
            self.charge(model, task, account, tokens * each_s)

    def generated(self, model: str, tenant: str, tokens: int) -> None:
        """A generation ended, after this number of tokens of its prompt and its text."""
        self._tokens.add(tokens, self._labels[self.account(tenant)], model, Task.GENERATE)

    def charge(self, model: str, task: str, account: int, seconds: float) -> None:
        """Time of the engines fell to a tenant; an account that no tenant has is that of the others."""
        self._seconds.add(seconds, self._labels[account if account < len(self._labels) else REST], model, task)
