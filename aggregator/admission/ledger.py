"""One ledger a process: the bytes held for requests, from the first that arrives until its reply is taken.

It has two parts. Callers are refused at theirs; sources that pause (Kafka, Redis) stop fetching at theirs. In either
no holder gets more than a share of the free bytes, so newcomers find room.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from aggregator.admission.bounds import FACTOR, SharedBound

Holders = tuple[str, ...]
"""Whose shares a reservation counts against: a tenant, a connection."""

MEMORY_BYTES = 256 * 1024 * 1024
"""Of a test's or tool's parts that stand alone; the aggregator's setting is `limits.memory_bytes`."""
INTAKE_SHARE = 0.5
"""The part of sources that pause, beside callers."""
_RESUME_SHARE = 0.8
"""A topic is fetched again below this part of where it paused: a fetch then has room for more than one record."""


class Reached(StrEnum):
    """The bound that a reservation reaches."""

    ALL = "all"  # the callers' part is full
    SHARE = "share"  # a holder has its share; the rest is kept for others
    NEVER = "never"  # more than a share of the whole part: no wait helps


class LedgerFull(Exception):
    """A reservation does not fit."""

    def __init__(self, reached: Reached) -> None:
        super().__init__(reached)
        self.reached = reached


class Ledger:
    """At most `most` bytes, of which `intake_share` are for sources that pause, and the rest for callers."""

    def __init__(self, most: int, intake_share: float = INTAKE_SHARE) -> None:
        part = int(most * intake_share)
        self.intake = Intake(part)
        self.callers = SharedBound(most - part)
        self.largest = int((most - part) * FACTOR / (FACTOR + 1.0))
        """The most bytes that one call can ever have: the share of a holder that is alone."""

    @property
    def total(self) -> int:
        return self.callers.total + self.intake.total

    def reserve(self, holders: Holders) -> Reservation:
        """A reservation of a caller, of no bytes yet."""
        return Reservation(self, holders)


class Reservation:
    """The bytes of one call: freed once, when its answer is taken."""

    __slots__ = ("_ledger", "holders", "size_bytes")

    def __init__(self, ledger: Ledger, holders: Holders) -> None:
        self.holders = holders
        self.size_bytes = 0
        self._ledger = ledger

    def grow(self, amount: int) -> None:
        """Add what arrived, was made of it, or will be written. Raises LedgerFull, and then adds nothing."""
        callers = self._ledger.callers
        if self.size_bytes + amount > self._ledger.largest:
            raise LedgerFull(Reached.NEVER)
        if not callers.has_room(amount):
            raise LedgerFull(Reached.ALL)
        if not callers.fits_share(self.holders, amount):
            raise LedgerFull(Reached.SHARE)
        self.charge(amount)

    def charge(self, amount: int) -> None:
        """Add what is there already, whether or not it fits; negative for what is no longer held."""
        self.size_bytes += amount
        self._ledger.callers.take(self.holders, amount)

    def also_count_for(self, holder: str) -> None:
        """Count it against one more holder's share. Raises LedgerFull if that is used up."""
        callers = self._ledger.callers
        callers.give_back(self.holders, self.size_bytes)
        fits = callers.fits_share((holder,), self.size_bytes)
        callers.take(self.holders, self.size_bytes)
        if not fits:
            raise LedgerFull(Reached.SHARE)
        callers.also_count_for(holder, self.size_bytes)
        self.holders += (holder,)

    def free(self) -> None:
        """Release all of it; a second time nothing is left to release."""
        self._ledger.callers.give_back(self.holders, self.size_bytes)
        self.size_bytes = 0


class Intake:
    """What topics and streams hold of their part. Their sources say how much that is, before they ask for more."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.largest = int(most * FACTOR / (FACTOR + 1.0))
        """The most that one request can ever have: the share of a place that is alone."""
        self.total = 0
        self._held: dict[str, int] = {}
        self._full: set[str] = set()

    @property
    def held(self) -> Mapping[str, int]:
        """The bytes of each place that has some."""
        return self._held

    def hold(self, place: str, size_bytes: int) -> None:
        """The bytes that a topic or stream holds now."""
        self.total += size_bytes - self._held.get(place, 0)
        if size_bytes:
            self._held[place] = size_bytes
        else:
            self._held.pop(place, None)

    def room(self, place: str) -> int:
        """How many more bytes fit the part and the place's share of it; not above 0: none."""
        return self._room(place, self.most)

    def is_full(self, place: str) -> bool:
        """Whether the place is to pause: from its share on, until it is well below it."""
        most = int(self.most * _RESUME_SHARE) if place in self._full else self.most
        if self._room(place, most) > 0:
            self._full.discard(place)
            return False
        self._full.add(place)
        return True

    def _room(self, place: str, most: int) -> int:
        free = most - self.total
        held = self._held.get(place, 0)
        return min(free, int((FACTOR * free - held) / (1.0 + FACTOR)))
