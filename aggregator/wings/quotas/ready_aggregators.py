"""Follow how many aggregators are ready."""

from __future__ import annotations

import logging

from aggregator.replicas.targets import OpenTargets, Target, fixed
from aggregator.settings.addresses import changes

_LOG = logging.getLogger(__name__)


class ReadyAggregators:
    """The number of ready aggregators (at least 1), among which a tenant's rate is divided; call it for the number."""

    def __init__(self, aggregators: str, open_targets: OpenTargets = fixed) -> None:
        """`aggregators` as in the setting of that name, which `open_targets` follows. Raises StartError."""
        self._found = open_targets([Target(aggregators, "")]) if changes(aggregators) else None
        self._count = 1 if self._found else int(aggregators)

    def __call__(self) -> int:
        return self._count

    async def run(self) -> None:
        """Follow the endpoints until cancelled; returns at once if the number is fixed."""
        if self._found is None:
            return
        async for found in self._found:
            self._count = max(1, len(found))
            _LOG.info("counted the ready aggregators", extra={"aggregators": self._count})
