"""Use as many of a model's replicas as there is work for."""

from __future__ import annotations

from bisect import insort
from hashlib import blake2b

from typing_extensions import override

from aggregator.scheduler.replica import Replica
from aggregator.scheduler.replica_choice import Replicas

_Ranked = tuple[bytes, str]

ENOUGH = 32
"""This many replicas are always active; more are while none of these takes what waits."""


class ActiveReplicas(Replicas):
    """Replicas by name; those `in_use` (active) are compared for each batch, the others are spare.

    Work that is spread over more servers than it needs travels in small batches, and comparing a thousand replicas
    costs more than a batch does. The names of replica and dispatcher decide which replicas are always active
    (rendezvous hashing: Thaler and Ravishankar, 1998), so that each aggregator has different ones.
    """

    def __init__(self, dispatcher: str) -> None:
        super().__init__()
        self.in_use = {}
        self._dispatcher = dispatcher
        self._ranked: list[_Ranked] = []
        self._spare: list[_Ranked] = []

    @property
    @override
    def has_spare(self) -> bool:
        return bool(self._spare)

    @override
    def widen(self) -> bool:
        if not self._spare:
            return False
        _, name = self._spare.pop(0)
        self.in_use[name] = self.data[name]
        return True

    @override
    def returned(self, replica: Replica) -> None:
        """A batch came back from this replica: unless it is always active, it is spare again once it is idle."""
        if len(self.data) > ENOUGH and self.data.get(replica.name) is replica:
            self._make_spare(self._rank(replica.name))

    @override
    def __setitem__(self, name: str, replica: Replica) -> None:
        self.pop(name, None)
        self.data[name] = self.in_use[name] = replica
        insort(self._ranked, self._rank(name))
        for ranked in (self._rank(name), *self._ranked[ENOUGH : ENOUGH + 1]):
            self._make_spare(ranked)

    @override
    def __delitem__(self, name: str) -> None:
        del self.data[name]
        self._ranked.remove(self._rank(name))
        if self.in_use.pop(name, None) is None:
            self._spare.remove(self._rank(name))
        for ranked in self._ranked[ENOUGH - 1 : ENOUGH]:
            if ranked in self._spare:
                self._spare.remove(ranked)
                self.in_use[ranked[1]] = self.data[ranked[1]]

    def _make_spare(self, ranked: _Ranked) -> None:
        name = ranked[1]
        always = len(self._ranked) <= ENOUGH or ranked < self._ranked[ENOUGH]
        if not always and name in self.in_use and not self.in_use[name].batches_out:
            del self.in_use[name]
            insort(self._spare, ranked)

    def _rank(self, name: str) -> _Ranked:
        return blake2b(f"{self._dispatcher} {name}".encode(), digest_size=8).digest(), name
