"""Share one bound among all who ask for room, so that nobody's use of it locks anybody else out."""

from __future__ import annotations

from collections.abc import Iterable

FACTOR = 4.0


def excess(held: int, amount: int, free: int, factor: float = FACTOR) -> float:
    """How much of what one holds must leave until `amount` more fits its share; none does: 0 or less.

    A share is `factor` times what is free (Choudhury and Hahne, "Dynamic queue length thresholds", 1998): alone one
    has `factor / (factor + 1)` of the bound, and however many flood, some of it stays free for the first of another.
    What leaves is taken off what is held, and added to what is free.
    """
    return (held + amount - factor * free) / (1.0 + factor)


class SharedBound:
    """One bound, and how much of it each of those holds who share it.

    What is taken can be put down to several at once: a tenant, say, and the connection it came by.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self._most = most
        self._held: dict[str, int] = {}

    @property
    def holders(self) -> int:
        """How many hold some of it."""
        return len(self._held)

    def has_room(self, amount: int) -> bool:
        """Whether so much more fits the bound; one alone always does."""
        return not self.total or self.total + amount <= self._most

    def fits_share(self, holders: Iterable[str], amount: int) -> bool:
        """Whether so much more fits the share of each of them."""
        if not self.total:
            return True
        free = self._most - self.total
        for holder in holders:  # noqa: SIM110 - a generator takes as long as all the rest
            if excess(self._held.get(holder, 0), amount, free) > 0:
                return False
        return True

    def take(self, holders: Iterable[str], amount: int) -> None:
        """Count it in, whether or not it fits."""
        self.total += amount
        held = self._held
        for holder in holders:
            held[holder] = held.get(holder, 0) + amount

    def put_down_to(self, holder: str, amount: int) -> None:
        """Hold one more to account for what was taken."""
        self._held[holder] = self._held.get(holder, 0) + amount

    def give_back(self, holders: Iterable[str], amount: int) -> None:
        """Count it out."""
        self.total -= amount
        for holder in holders:
            left = self._held.get(holder, 0) - amount
            if left:
                self._held[holder] = left
            else:
                self._held.pop(holder, None)
