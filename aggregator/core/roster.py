"""A dispatcher's lanes, and which of them are in use: of very many, as many as there is work for."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, MutableMapping
from hashlib import blake2b
from itertools import chain
from math import inf

from typing_extensions import override

from aggregator.core.lanes import Lane

_Ranked = tuple[bytes, str]

ENOUGH = 32
"""So many lanes are always in use, and more while none of those takes what waits."""


class Roster(MutableMapping[str, Lane]):
    """Lanes by name; those `in_use` are compared for each batch, the others are spare.

    Work that is spread over more servers than it needs is cut into smaller batches than they could hold, and to
    compare a thousand lanes costs more than a batch does. Which lanes are always in use follows from their names and
    the dispatcher's (rendezvous hashing: Thaler and Ravishankar, 1998), so that each aggregator has others.
    """

    def __init__(self, dispatcher: str) -> None:
        self.in_use: dict[str, Lane] = {}
        self._dispatcher = dispatcher
        self._lanes: dict[str, Lane] = {}
        self._ranked: list[_Ranked] = []
        self._spare: list[_Ranked] = []

    @property
    def has_spare(self) -> bool:
        """Whether a lane is not in use."""
        return bool(self._spare)

    def due_s(self, now_s: float) -> float:
        """When the first lane takes its next batch (monotonic seconds); `inf` when there is none."""
        first_s = inf
        for lane in chain((self._lanes[name] for _, name in self._spare), self.in_use.values()):
            first_s = min(first_s, lane.due_s(now_s))
            if first_s <= now_s:
                break
        return first_s

    def widen(self) -> bool:
        """Use one of the spare lanes, too; False when there is none."""
        if not self._spare:
            return False
        _, name = self._spare.pop(0)
        self.in_use[name] = self._lanes[name]
        return True

    def returned(self, lane: Lane) -> None:
        """Note that a batch came back from this lane: unless it is always in use, it is spare once it is idle."""
        if len(self._lanes) > ENOUGH and self._lanes.get(lane.name) is lane:
            self._let_go(self._rank(lane.name))

    @override
    def __getitem__(self, name: str) -> Lane:
        return self._lanes[name]

    @override
    def __setitem__(self, name: str, lane: Lane) -> None:
        self.pop(name, None)
        self._lanes[name] = self.in_use[name] = lane
        insort(self._ranked, self._rank(name))
        for ranked in (self._rank(name), *self._ranked[ENOUGH : ENOUGH + 1]):
            self._let_go(ranked)

    @override
    def __delitem__(self, name: str) -> None:
        del self._lanes[name]
        self._ranked.remove(self._rank(name))
        if self.in_use.pop(name, None) is None:
            self._spare.remove(self._rank(name))
        for ranked in self._ranked[ENOUGH - 1 : ENOUGH]:
            if ranked in self._spare:
                self._spare.remove(ranked)
                self.in_use[ranked[1]] = self._lanes[ranked[1]]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    @override
    def __len__(self) -> int:
        return len(self._lanes)

    def _let_go(self, ranked: _Ranked) -> None:
        """Let a lane be spare if it is idle, and not one of those that are always in use."""
        name = ranked[1]
        always = len(self._ranked) <= ENOUGH or ranked < self._ranked[ENOUGH]
        if not always and name in self.in_use and not self.in_use[name].batches_out:
            del self.in_use[name]
            insort(self._spare, ranked)

    def _rank(self, name: str) -> _Ranked:
        return blake2b(f"{self._dispatcher} {name}".encode(), digest_size=8).digest(), name
