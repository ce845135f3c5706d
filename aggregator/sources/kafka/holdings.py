"""What the records of each topic hold of the ledger, and the requests that wait until there is room for their reply."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from sys import getsizeof

from aggregator.admission.ledger import Intake
from aggregator.request.request import KAFKA, Request
from aggregator.sources.kafka.decode import origin_of, record_of
from aggregator.sources.kafka.offsets import CommittedOffset
from aggregator.sources.wire.encode import answer_bytes, made_bytes

Sized = tuple[Request, int]
"""A request, and the bytes that its admission adds."""
_ADDED = itemgetter(1)


class Sizes:
    """The memory of records' requests besides the records: what is made of the inputs, and the replies as written.

    `dimensions`: of a model's vectors, 0 if not known. For requests that come together: of usual ones, which ask for a
    vector of a text, the common part is computed once.
    """

    def __init__(self, dimensions: Callable[[str], int]) -> None:
        self._dimensions = dimensions
        self._usual: dict[tuple[int, str, bool], int] = {}

    def added_bytes(self, request: Request) -> int:
        inputs, origin = request.inputs, origin_of(request)
        text = inputs[0]
        if len(inputs) > 1 or type(text) is not str or request.details is not None:
            longer = request.text_bytes - len(origin.in_flight.value or b"")  # than in UTF-8
            return max(0, longer) + self._rest(request, as_json=origin.route.json)
        key = id(request.options), request.model, origin.route.json
        usual = self._usual.get(key)
        if usual is None:
            usual = self._usual[key] = self._rest(request, as_json=origin.route.json)
        if text.isascii():
            return usual
        return usual + max(0, getsizeof(text) - len(origin.in_flight.value or b""))

    def _rest(self, request: Request, *, as_json: bool) -> int:
        return made_bytes(request) + answer_bytes(request, self._dimensions(request.model), as_json=as_json)


class Holdings:
    """The topics' part of the ledger; `assigned`: the committed offsets of all partitions that are read."""

    def __init__(self, intake: Intake, assigned: Callable[[], Iterable[CommittedOffset]]) -> None:
        self._intake = intake
        self._assigned = assigned
        self._admitted: dict[str, int] = {}

    @property
    def largest(self) -> int:
        """The most bytes that one record can have."""
        return self._intake.largest

    @property
    def room_bytes(self) -> int:
        """The bytes that may be fetched before every topic pauses."""
        return self._intake.most - self._intake.total

    def full(self) -> frozenset[str]:
        """The topics that hold their share."""
        self._count()
        return frozenset(topic for topic in self._admitted if self._intake.is_full(_place(topic)))

    def admit(self, sized: Sequence[Sized]) -> list[Request]:
        """The requests that their topics have room for, which they hold from now on.

        Of each topic they are the first ones; one always goes where the topic has none on its way.
        """
        self._count()
        room = min((self._intake.room(_place(topic)) for topic in self._admitted), default=0)
        if sum(map(_ADDED, sized)) > room:
            sized = list(self._fitting(sized))
        for request, added in sized:
            record = record_of(request)
            record.admitted_bytes = added
            record.held_bytes += added
            committed_offset = record.committed_offset
            committed_offset.held_bytes += added
            committed_offset.admitted_bytes += added
        return [request for request, _ in sized]

    def _fitting(self, sized: Sequence[Sized]) -> Iterator[Sized]:
        room: dict[str, int] = {}
        for request, added in sized:
            topic = record_of(request).committed_offset.topic
            if topic not in room:
                room[topic] = self._intake.room(_place(topic))
            if added > room[topic] and self._admitted.get(topic):
                room[topic] = -1  # those after it do not overtake it
                continue
            room[topic] -= added
            self._admitted[topic] = self._admitted.get(topic, 0) + added
            yield request, added

    def _count(self) -> None:
        held, admitted = dict.fromkeys(self._admitted, 0), dict.fromkeys(self._admitted, 0)
        for each in self._assigned():
            held[each.topic] = held.get(each.topic, 0) + each.held_bytes
            admitted[each.topic] = admitted.get(each.topic, 0) + each.admitted_bytes
        for topic, size_bytes in held.items():
            self._intake.hold(_place(topic), size_bytes)
        self._admitted = admitted


def _place(topic: str) -> str:
    return f"{KAFKA}:{topic}"


class WaitingRequests:
    """Decoded requests, in their order, until their topic has room for them and is not paused."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._waiting: deque[Sized] = deque()
        self._paused: frozenset[str] = frozenset()
        self._closed = False
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def admit(self, sized: Sequence[Sized]) -> list[Request]:
        """The requests that may go on at once; the others wait."""
        if not sized:
            return []
        if self._waiting:
            self._waiting += sized
            self._changed.set()
            return []
        requests = self._holdings.admit(sized)
        if len(requests) < len(sized):
            gone = set(requests)
            self._waiting += [each for each in sized if each[0] not in gone]
        return requests

    async def take(self) -> Sequence[Request]:
        """The next requests that waited, at least one; none once `close` was called. For one caller."""
        while not (taken := self._next()) and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return taken

    def change(self, paused: frozenset[str]) -> None:
        """There may be room now; `paused`: topics whose requests wait on."""
        self._paused = paused
        self._changed.set()

    def drop_fenced(self) -> None:
        """Forget the requests of revoked partitions: their new owner processes them."""
        self._waiting = deque(each for each in self._waiting if not record_of(each[0]).committed_offset.fenced)
        self._changed.set()

    def close(self) -> None:
        """Hand out nothing further: the next consumer processes the requests that wait."""
        self._closed = True
        self._waiting.clear()
        self._changed.set()

    def _next(self) -> list[Request]:
        live = [each for each in self._waiting if record_of(each[0]).committed_offset.topic not in self._paused]
        if not live:
            return []
        taken = self._holdings.admit(live)
        if taken:
            gone = set(taken)
            self._waiting = deque(each for each in self._waiting if each[0] not in gone)
        return taken
