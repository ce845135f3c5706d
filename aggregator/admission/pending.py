"""Keep the requests of a model that has no server yet, and expire them by deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from aggregator.request.request import Request

_PER_TOKEN = 4
"""Characters of a token, in English; and the bytes of a token id."""
_FEW = 64  # fewer removed requests are not worth a pass over the list


class Pending:
    """Requests that wait outside of any queue: without a server there is no tokenizer to count their tokens."""

    def __init__(self) -> None:
        self._sizes: dict[Request, int] = {}
        self._deadlines: list[tuple[float, int, Request]] = []
        self._numbers = count()
        self._size = 0
        self.calls = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._sizes)

    @property
    def tokens(self) -> int:
        return self._size // _PER_TOKEN

    @property
    def next_deadline_s(self) -> float:
        """When `expire` has something to do next (monotonic seconds); `inf` when no deadline waits."""
        while self._deadlines and self._deadlines[0][2] not in self._sizes:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else inf

    def append(self, request: Request) -> None:
        size = request.characters
        self._sizes[request] = size
        self._size += size
        self.calls += request.source.refusable
        if request.deadline_s < inf:
            heappush(self._deadlines, (request.deadline_s, next(self._numbers), request))

    def discard(self, request: Request) -> None:
        if request in self._sizes:
            self._remove(request)
        if len(self._deadlines) > 2 * len(self._sizes) + _FEW:  # free the memory of removed requests
            self._deadlines = [each for each in self._deadlines if each[2] in self._sizes]
            heapify(self._deadlines)

    def expire(self, now_s: float) -> list[Request]:
        late: list[Request] = []
        while self.next_deadline_s <= now_s < inf:
            late.append(heappop(self._deadlines)[2])
            self._remove(late[-1])
        return late

    def take(self, gone: Callable[[Request], bool]) -> list[Request]:
        taken = [request for request in self if gone(request)]
        for request in taken:
            self.discard(request)
        return taken

    def _remove(self, request: Request) -> None:
        self._size -= self._sizes.pop(request)
        self.calls -= request.source.refusable
