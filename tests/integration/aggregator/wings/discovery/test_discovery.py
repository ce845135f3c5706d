"""Model servers and aggregators are found by address, by name and by Service, and followed as they come and go."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from aggregator.replicas.targets import Target
from aggregator.settings.addresses import DnsAddress
from aggregator.wings.discovery import discovery
from aggregator.wings.discovery.discovery import EVERY_S, Discovery, look_up, resolved
from tests.support.fake_kubernetes import SLICES, FakeKubernetesApi, slice_of
from tests.support.virtual_time import in_virtual_time, run

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
        await targets.aclose()


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
    await targets.aclose()


class Resolver:
    """Answers in turn, the last one for ever; an error is raised."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self._answers = list(answers)
        self.asked_s: list[float] = []

    async def __call__(self, name: str, port: int) -> frozenset[str]:
        assert (name, port) == ("servers", 50061)
        self.asked_s.append(asyncio.get_running_loop().time())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, OSError):
            raise answer
        return frozenset(answer)


ADDRESS = DnsAddress("servers", 50061)


@in_virtual_time
async def test_every_change_is_given_and_nothing_else() -> None:
    resolver = Resolver(["a"], ["a"], ["a", "b"], ["b"])
    answers = resolved(ADDRESS, resolver)
    assert [await anext(answers) for _ in range(3)] == [{"a"}, {"a", "b"}, {"b"}]
    await answers.aclose()
    assert resolver.asked_s == [resolver.asked_s[0] + EVERY_S * times for times in range(4)]
    assert EVERY_S < 5  # so long may a new server wait for its first batch


def test_a_resolver_that_is_away_changes_nothing_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    away = socket.gaierror(socket.EAI_AGAIN, "away")
    resolver = Resolver(["a"], away, away, away, ["a"], away, ["c"])

    async def check() -> None:
        answers = resolved(ADDRESS, resolver)
        assert [await anext(answers) for _ in range(2)] == [{"a"}, {"c"}]
        await answers.aclose()

    with caplog.at_level(logging.WARNING):
        run(check())
    assert len(caplog.records) == 2


async def test_addresses_of_both_kinds_are_written_as_grpc_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(name: str, port: int, **options: Any) -> list[Any]:
        assert (name, options) == ("servers", {"type": socket.SOCK_STREAM})
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port)),
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", port, 0, 0)),
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await look_up("servers", 1) == {"10.0.0.1:1", "[fd00::1]:1"}
