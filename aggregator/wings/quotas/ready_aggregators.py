"""Follow how many aggregators are ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from aggregator.replicas.discovery import Discovery, Resolve, Target, look_up
from aggregator.settings.addresses import changes
from k8s.kube.client import connect

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes

_LOG = logging.getLogger(__name__)


class ReadyAggregators:
    """The number of ready aggregators (at least 1), among which a tenant's rate is divided; call it for the number."""

    def __init__(
        self, aggregators: str, cluster: Callable[[], Kubernetes] = connect, resolve: Resolve = look_up
    ) -> None:
        """`aggregators` as in the setting of that name. Raises StartError as `Discovery` does."""
        self._found = Discovery([Target(aggregators, "")], cluster, resolve) if changes(aggregators) else None
        self._count = 1 if self._found else int(aggregators)

    def __call__(self) -> int:
        return self._count

    async def run(self) -> None:
        """Follow the endpoints until cancelled; returns at once if the number is fixed."""
        if self._found is None:
            return
        async with aclosing(aiter(self._found)) as answers:
            async for found in answers:
                self._count = max(1, len(found))
                _LOG.info("counted the ready aggregators", extra={"aggregators": self._count})
