"""Count the aggregators that are ready, among which a tenant's rate is divided."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing

from aggregator.replicas.addresses import Follower, changes
from aggregator.replicas.dns import Resolve, look_up
from k8s.api import Kubernetes, connect

_LOG = logging.getLogger(__name__)


class ReadyAggregators:
    """Call it for the number: fixed, or of the endpoints of an address; never less than 1, as this one is there."""

    def __init__(
        self, aggregators: str, cluster: Callable[[], Kubernetes] = connect, resolve: Resolve = look_up
    ) -> None:
        """`aggregators` as in the setting of that name. Raises StartError for a Service where no cluster is known."""
        self._follower = Follower(cluster, resolve)
        self._followed = self._follower.follow(aggregators) if changes(aggregators) else None
        self._count = int(aggregators) if self._followed is None else 1

    def __call__(self) -> int:
        """How many there are, as far as is known."""
        return self._count

    async def run(self) -> None:
        """Follow their endpoints until cancelled; returns at once where the number is fixed."""
        if self._followed is None:
            return
        try:
            async with aclosing(self._followed.endpoints()) as answers:
                async for hosts in answers:
                    self._count = max(1, len(hosts))
                    _LOG.info("counted the ready aggregators", extra={"aggregators": self._count})
        finally:
            await self._follower.close()
