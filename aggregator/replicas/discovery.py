"""Say where the model servers should be: addresses as they stand in the settings, and what Services and names have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from typing_extensions import override

from aggregator.replicas.addresses import Followed, Follower, changes
from aggregator.replicas.dns import Resolve, look_up
from aggregator.replicas.watch import Target
from k8s.api import Kubernetes, connect


class ConfiguredModel(Protocol):
    """A model and where it is served."""

    @property
    def name(self) -> str:
        """The name its servers must give."""
        ...

    @property
    def servers(self) -> Sequence[str]:
        """`host:port` of each."""
        ...


class Discovered(AsyncIterable[frozenset[Target]]):
    """All targets, given anew whenever they change.

    `k8s://SERVICE.NAMESPACE:PORT` stands for a Service's endpoints, `dns://NAME:PORT` for a name's addresses.
    """

    def __init__(
        self,
        models: Sequence[ConfiguredModel],
        cluster: Callable[[], Kubernetes] = connect,
        resolve: Resolve = look_up,
    ) -> None:
        """Raises StartError for an address that cannot be read, and for a Service where no cluster is known."""
        named = [(address, model.name) for model in models for address in model.servers]
        self._follower = Follower(cluster, resolve)
        self._fixed = frozenset(Target(address, model) for address, model in named if not changes(address))
        self._followed = [(self._follower.follow(address), model) for address, model in named if changes(address)]

    @override
    async def __aiter__(self) -> AsyncIterator[frozenset[Target]]:
        """Follow every address that changes until closed."""
        if not self._followed:
            yield self._fixed
            return
        found: dict[int, frozenset[Target]] = {}
        changed = asyncio.Event()

        async def follow(number: int, followed: Followed, model: str) -> None:
            async with aclosing(followed.endpoints()) as answers:
                async for hosts in answers:
                    found[number] = frozenset(Target(host, model) for host in hosts)
                    changed.set()

        following = [
            asyncio.create_task(follow(number, followed, model), name=f"follow {followed.address}")
            for number, (followed, model) in enumerate(self._followed)
        ]
        for task in following:
            task.add_done_callback(lambda _: changed.set())
        try:
            while True:
                yield self._fixed.union(*found.values())
                await changed.wait()
                changed.clear()
                for task in following:
                    if task.done():
                        task.result()  # it ends only by what nobody thought of, which is not to be passed over
        finally:
            for task in following:
                task.cancel()
            await self._follower.close()
