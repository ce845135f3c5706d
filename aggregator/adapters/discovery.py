"""Say where the model servers should be: addresses as they stand in the settings, and Services of Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from typing_extensions import override

from aggregator.adapters.modelserver_watch import Target
from k8s.api import Kubernetes, connect
from k8s.endpoints import SCHEME, ServiceAddress, endpoints


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
    """All targets, given anew whenever they change; `k8s://SERVICE.NAMESPACE:PORT` stands for a Service's endpoints."""

    def __init__(self, models: Sequence[ConfiguredModel], cluster: Callable[[], Kubernetes] = connect) -> None:
        """Raises StartError for an address that cannot be read, and for a Service where no cluster is known."""
        self._fixed = frozenset(
            Target(address, model.name)
            for model in models
            for address in model.servers
            if not address.startswith(SCHEME)
        )
        self._services = [
            (ServiceAddress.parse(address), model.name)
            for model in models
            for address in model.servers
            if address.startswith(SCHEME)
        ]
        self._kubernetes = cluster() if self._services else None

    @override
    async def __aiter__(self) -> AsyncIterator[frozenset[Target]]:
        """Follow every Service until closed."""
        if self._kubernetes is None:
            yield self._fixed
            return
        found: dict[int, frozenset[Target]] = {}
        changed = asyncio.Event()
        kubernetes = self._kubernetes

        async def follow(number: int, address: ServiceAddress, model: str) -> None:
            async with aclosing(endpoints(kubernetes, address)) as answers:
                async for hosts in answers:
                    found[number] = frozenset(Target(host, model) for host in hosts)
                    changed.set()

        following = [
            asyncio.create_task(follow(number, *service), name=f"follow {service[0].service}")
            for number, service in enumerate(self._services)
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
            await kubernetes.close()
