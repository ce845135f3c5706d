"""The model servers to connect to: by default at fixed addresses. `wings/discovery` follows addresses that change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from dataclasses import dataclass

from aggregator.settings.addresses import changes
from k8s.pod.errors import StartError


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a server, and the model it should serve."""

    address: str
    model: str


Targets = AsyncIterable[frozenset[Target]]
"""All configured servers: the whole set at each change."""
OpenTargets = Callable[[Iterable[Target]], Targets]
"""Makes the targets of addresses as in the settings. Raises StartError."""


def fixed(targets: Iterable[Target]) -> Targets:
    """Targets that never change. Raises StartError for an address whose endpoints do."""
    known = frozenset(targets)
    for target in known:
        if changes(target.address):
            raise StartError(f"{target.address}: this aggregator follows no addresses that change: set host:port")
    return _once(known)


async def _once(known: frozenset[Target]) -> AsyncGenerator[frozenset[Target]]:
    yield known
