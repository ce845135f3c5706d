"""Model servers at fixed addresses are there from the start; addresses that change take a wing that follows them."""

from __future__ import annotations

import asyncio

import pytest

from aggregator.replicas.targets import Target, Targets, fixed
from k8s.pod.errors import StartError


async def every(targets: Targets) -> list[frozenset[Target]]:
    return [each async for each in targets]


def test_fixed_addresses_are_given_once() -> None:
    configured = [Target("x:1", "a"), Target("y:1", "a"), Target("x:1", "b")]
    assert asyncio.run(every(fixed(configured))) == [frozenset(configured)]


@pytest.mark.parametrize("address", ["k8s://a.ns:50061", "dns://servers:1"])
def test_an_address_that_nobody_follows_is_a_start_error(address: str) -> None:
    with pytest.raises(StartError, match="set host:port"):
        fixed([Target("x:1", "a"), Target(address, "a")])
