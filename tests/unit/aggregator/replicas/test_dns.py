"""A name is resolved again and again: what it stands for follows it, and outlives a resolver that is away."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from aggregator.replicas.discovery import EVERY_S, look_up, resolved
from aggregator.settings.addresses import DnsAddress
from tests.support.virtual_time import in_virtual_time, run


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
