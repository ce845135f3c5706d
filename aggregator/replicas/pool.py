"""Keep a connection to every model server, and report to the pipeline which of them take batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable

from aggregator.engine import Engine, PoolMembers, ServerDescription
from aggregator.observability.tracing import Tracing
from aggregator.replicas.client import ModelServerClient
from aggregator.replicas.discovery import Target
from aggregator.replicas.watch import Agreement, ProbePolicy, ServerWatch
from aggregator.tokenizers.cache import TokenizerCache

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
        for watch in self._watches.values():
            watch.suspect(engine)

    def troubles(self) -> list[tuple[Target, str]]:
        """Every configured server, and why it is not in the pool; empty for those that are."""
        return [(target, watch.trouble) for target, watch in self._watches.items()]

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
