"""Agree with the other replicas of this scaler: what any of them requires, all publish.

Each remembers what it saw: a peak, what was waiting when pods were asked for, what a pod does. So one that has just
started, or looked at another moment, comes to another figure from the same inputs; the higher is of who knows more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from aggregator.scheduler.demand import StaleInputError
from k8s.scaler.catalog import OWN_REQUIRED_REPLICAS, UnknownMetric
from k8s.scaler.neighbours import values


class Peers:
    """The replicas there are, this one among them, whose answer changes nothing."""

    def __init__(self, labels: Mapping[str, str], timeout_s: float) -> None:
        """`labels`: the label of each model, and its name."""
        self._labels = labels
        self._timeout_s = timeout_s
        self._addresses: frozenset[str] = frozenset()

    async def follow(self, found: AsyncIterator[Mapping[str, bool]]) -> None:
        """Keep to the addresses that there are."""
        async for addresses in found:
            self._addresses = frozenset(addresses)

    async def required(self) -> Mapping[str, float]:
        """By model the most that one of them requires; left out where none knows."""
        asked = [(address, label) for address in self._addresses for label in self._labels]
        told = await asyncio.gather(*(self._ask(*each) for each in asked))
        found: dict[str, float] = {}
        for (_, label), required in zip(asked, told, strict=True):
            name = self._labels[label]
            if required:
                found[name] = max(*required, found.get(name, 0.0))
        return found

    async def _ask(self, address: str, label: str) -> Sequence[float]:
        try:
            return await values(address, OWN_REQUIRED_REPLICAS, {"model": label}, self._timeout_s)
        except (StaleInputError, UnknownMetric):
            return ()
