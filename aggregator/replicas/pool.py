"""Keep a connection to every model server, and tell the pipeline which of them take batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable

from aggregator.admission.tokenizers.cache import TokenizerCache
from aggregator.observability.tracing import Tracing
from aggregator.replicas.client import ModelServerClient
from aggregator.replicas.discovery import Target
from aggregator.replicas.engine import Engine, PoolMembers, ServerDescription
from aggregator.replicas.watch import Agreement, ProbePolicy, ServerWatch

Targets = AsyncIterable[frozenset[Target]]
"""All configured servers: the whole set at each change."""


class ModelServers:
    """The model servers at changing addresses; an `engine.Pool`."""

    def __init__(
        self,
        targets: Targets,
        tokenizers: TokenizerCache,
        *,
        tracing: Tracing | None = None,
        policy: ProbePolicy | None = None,
        connect: Callable[[str, Tracing | None], ModelServerClient] = ModelServerClient,
    ) -> None:
        self._targets = targets
        self._tokenizers = tokenizers
        self._tracing = tracing
        self._policy = policy or ProbePolicy()
        self._connect = connect
        self._agreement = Agreement()
        self._watches: dict[Target, ServerWatch] = {}

    async def run(self, members: PoolMembers) -> None:
        """Watch every configured server, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            running: dict[Target, asyncio.Task[None]] = {}
            async for targets in self._targets:
                for target in running.keys() - targets:
                    running.pop(target).cancel()
                    del self._watches[target]
                for target in targets - running.keys():
                    watch = self._watch(target, members)
                    running[target] = tasks.create_task(watch.run(), name=f"model server {target.address}")

    def suspect(self, engine: Engine) -> None:
        """A batch failed there: remove it now, probe it, and let it join again when it answers well."""
        for watch in self._watches.values():
            watch.suspect(engine)

    def _watch(self, target: Target, members: PoolMembers) -> ServerWatch:
        client = self._connect(target.address, self._tracing)
        watch = ServerWatch(
            target,
            client,
            members=members,
            tokenizers=self._tokenizers,
            agreement=self._agreement,
            policy=self._policy,
        )
        self._watches[target] = watch
        return watch


async def describe(address: str, timeout_s: float) -> ServerDescription:
    """The description of the server at an address. Raises ModelServerLost or BadDescription."""
    client = ModelServerClient(address)
    try:
        return await client.describe(timeout_s)
    finally:
        await client.close()
