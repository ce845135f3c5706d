"""Replicas of one scaler publish one figure, whatever each of them remembers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from aggregator.wings.scaler.keda import GrpcPort, KedaScaler
from aggregator.wings.scaler.measuring.demand import StaleInputError
from aggregator.wings.scaler.measuring.figures import Figure
from aggregator.wings.scaler.other_scalers import Peers
from aggregator.wings.scaler.published import REQUIRED_REPLICAS, Published

MODELS = ["m"]


class Replica:
    """One replica: what it came to itself, and what it publishes."""

    def __init__(self) -> None:
        self.published = Published(MODELS, "scaler", 20.0, lambda: 100.0)
        self.port = GrpcPort(KedaScaler(self.published, 1.0), "127.0.0.1:0", 8)
        self.peers = Peers(MODELS, 5.0)

    def comes_to(self, required: float, *, saw_scale_up: bool = True) -> None:
        self.published.figures = {"m": Figure(required, 0, 100.0, saw_scale_up)}

    async def publishes(self) -> float:
        self.published.of_peers = await self.peers.required()
        (value,) = self.published.query(REQUIRED_REPLICAS, {"model": "m"})
        return value.value


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    replicas = [Replica() for _ in range(3)]
    for each in replicas:
        await each.port.start()
    for each in replicas:
        await each.peers.follow(_all(replicas))
    yield replicas
    for each in replicas:
        await each.port.stop(0)


async def _all(replicas: list[Replica]) -> AsyncIterator[Mapping[str, bool]]:
    yield {each.port.address: True for each in replicas}


async def test_one_that_does_not_answer_or_has_measured_nothing_is_passed_over(replicas: list[Replica]) -> None:
    replicas[0].comes_to(2.0)
    await replicas[1].port.stop(0)
    assert await replicas[0].publishes() == 2.0
    with pytest.raises(StaleInputError):
        await replicas[2].publishes()
