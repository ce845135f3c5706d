"""Keep the requests of a model that has no server yet: the earliest deadline first, and bounded by what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from aggregator.request import Request

_PER_TOKEN = 4
"""Characters of a token, in English; and the bytes of a token id."""


class Parked:
    """Requests in no queue, as nothing is known yet that could count their tokens."""

    def __init__(self) -> None:
        self._places: list[tuple[float, int, Request]] = []
        self._numbers = count()
        self._size = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Request]:
        """In the order of arrival."""
        return (request for _, _, request in sorted(self._places, key=lambda place: place[1]))

    @property
    def tokens(self) -> int:
        """About as many tokens as they hold."""
        return self._size // _PER_TOKEN

    @property
    def next_deadline_s(self) -> float:
        """When `expire` has something to do next (monotonic seconds); `inf` when no deadline waits."""
        return self._places[0][0] if self._places else float("inf")

    def append(self, request: Request) -> None:
        """One more."""
        heappush(self._places, (request.deadline_s, next(self._numbers), request))
        self._size += _size(request)

    def expire(self, now_s: float) -> list[Request]:
        """Take out those whose deadline has passed."""
        late: list[Request] = []
        while self._places and self._places[0][0] <= now_s:
            late.append(heappop(self._places)[2])
        self._size -= sum(map(_size, late))
        return late

    def take(self, gone: Callable[[Request], bool]) -> list[Request]:
        """Take out those for which `gone` holds."""
        taken = [request for request in self if gone(request)]
        left = set(taken)
        self._places = [place for place in self._places if place[2] not in left]
        heapify(self._places)
        self._size -= sum(map(_size, taken))
        return taken


def _size(request: Request) -> int:
    return sum(map(len, request.inputs))
