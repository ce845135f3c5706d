"""A dispatcher's lanes, and which of them are in use: of very many, as many as there is work for."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, MutableMapping
from hashlib import blake2b
from math import inf

from typing_extensions import override

from aggregator.core.lanes import Lane

ENOUGH = 32
"""Up to so many lanes are always in use; more only while none of those takes a batch."""


class Roster(MutableMapping[str, Lane]):
    """Lanes by name; those `in_use` are compared for each batch, the others are spare.

    Work that is spread over more servers than it needs is cut into smaller batches than they could hold, and to
    compare a thousand lanes costs more than a batch does. Which lanes are spare follows from their names and the
    dispatcher's (rendezvous hashing: Thaler and Ravishankar, 1998), so that many aggregators together use all.
    """

    def __init__(self, dispatcher: str) -> None:
        self.in_use: dict[str, Lane] = {}
        self._dispatcher = dispatcher
        self._lanes: dict[str, Lane] = {}
        self._spare: list[tuple[bytes, str]] = []

    def due_s(self, now_s: float) -> float:
        """When the first lane takes its next batch (monotonic seconds); `inf` when there is none."""
        return now_s if self._spare else min((lane.due_s(now_s) for lane in self.in_use.values()), default=inf)

    def widen(self) -> bool:
        """Use one of the spare lanes, too; False when there is none."""
        if not self._spare:
            return False
        _, name = self._spare.pop(0)
        self.in_use[name] = self._lanes[name]
        return True

    def returned(self, lane: Lane) -> None:
        """Note that a batch came back from this lane: if it is idle and one of too many, it is spare from now on."""
        if len(self.in_use) > ENOUGH and not lane.batches_out and self.in_use.get(lane.name) is lane:
            self._spare_one(lane.name)

    @override
    def __getitem__(self, name: str) -> Lane:
        return self._lanes[name]

    @override
    def __setitem__(self, name: str, lane: Lane) -> None:
        self.pop(name, None)
        self._lanes[name] = self.in_use[name] = lane
        if len(self.in_use) > ENOUGH:
            idle = [name for name, lane in self.in_use.items() if not lane.batches_out]
            self._spare_one(max(idle, key=self._rank))

    @override
    def __delitem__(self, name: str) -> None:
        del self._lanes[name]
        if self.in_use.pop(name, None) is None:
            self._spare.remove((self._rank(name), name))
        elif len(self.in_use) < ENOUGH:
            self.widen()

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    @override
    def __len__(self) -> int:
        return len(self._lanes)

    def _spare_one(self, name: str) -> None:
        del self.in_use[name]
        insort(self._spare, (self._rank(name), name))

    def _rank(self, name: str) -> bytes:
        return blake2b(f"{self._dispatcher} {name}".encode(), digest_size=8).digest()
