"""The hook that attributes the engines' time and tokens to tenants. By default nobody is charged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aggregator.scheduler.work_item import WorkItem

REST = 0
"""The account of all other tenants, and of the aggregator's own probes."""
NOBODY = 1
"""The account of steps that gave nobody a result: they failed, or their callers had left."""


class Costs:
    """What tenants cost; used from the event loop's thread only. This one counts nothing; the wing `costs` does."""

    def account(self, tenant: str) -> int:
        """The number under which a tenant is charged."""
        del tenant
        return REST

    def computed(
        self, model: str, task: str, items: Sequence[WorkItem], failed_rows: Mapping[int, int], seconds: float
    ) -> None:
        """A batch was computed; `seconds`: its part of the step. `failed_rows`: codes by place."""

    def count(self, model: str, task: str, tenant: str, tokens: int) -> None:
        """Add to the tokens that were computed for a tenant."""

    def charge(self, model: str, task: str, account: int, seconds: float) -> None:
        """Add to the engine time of an account; one that no tenant has counts as that of the others."""


FREE = Costs()
"""Nobody is charged."""
