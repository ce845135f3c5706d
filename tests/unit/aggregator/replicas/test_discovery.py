"""Model servers are found by address, by name and by Service, and all together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aggregator.replicas import discovery
from aggregator.replicas.discovery import Discovery, Target
from tests.support.fake_kubernetes import SLICES, FakeKubernetesApi, slice_of

PATH = f"{SLICES.format(namespace='ns')}/one"


async def first(targets: AsyncIterator[frozenset[Target]]) -> set[str]:
    return {f"{target.model} {target.address}" for target in await asyncio.wait_for(anext(targets), 30)}


async def test_addresses_are_given_once() -> None:
    targets = aiter(Discovery([Target("x:1", "a"), Target("y:1", "a"), Target("x:1", "b")]))
    assert await first(targets) == {"a x:1", "a y:1", "b x:1"}
    with pytest.raises(StopAsyncIteration):
        await anext(targets)


async def test_the_endpoints_of_services_join_the_addresses() -> None:
    api = FakeKubernetesApi()
    api.put(PATH, slice_of("10.0.0.1"))
    configured = [Target("x:1", "a"), Target("k8s://a.ns:50061", "a"), Target("y:1", "b")]
    async with api.started():
        targets = aiter(Discovery(configured, api.client))
        assert await first(targets) == {"a x:1", "b y:1"}
        assert await first(targets) == {"a x:1", "a 10.0.0.1:50061", "b y:1"}
        api.put(PATH, slice_of("10.0.0.1", "10.0.0.2"))
        assert await first(targets) == {"a x:1", "a 10.0.0.1:50061", "a 10.0.0.2:50061", "b y:1"}
        api.delete(PATH)
        assert await first(targets) == {"a x:1", "b y:1"}
        await targets.aclose()  # type: ignore[attr-defined]  # an async generator


async def test_the_addresses_of_names_join_the_others_as_they_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "EVERY_S", 0.01)
    now = {"a": {"10.0.0.1"}, "b": {"10.0.1.1"}}

    async def resolve(name: str, port: int) -> frozenset[str]:
        return frozenset(f"{host}:{port}" for host in now[name])

    configured = [Target("x:1", "m"), Target("dns://a:2", "m"), Target("dns://b:3", "n")]
    targets = aiter(Discovery(configured, resolve=resolve))
    both = {"m x:1", "m 10.0.0.1:2", "n 10.0.1.1:3"}
    while (found := await first(targets)) != both:
        assert found < both
    now["a"] = {"10.0.0.2"}
    assert await first(targets) == {"m x:1", "m 10.0.0.2:2", "n 10.0.1.1:3"}
    await targets.aclose()  # type: ignore[attr-defined]  # an async generator
