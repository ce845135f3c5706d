"""The memory that the records of each topic hold of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from sys import getsizeof

from aggregator.admission.ledger import Intake
from aggregator.request.request import KAFKA, Request
from aggregator.sources.kafka.decode import RecordOrigin, record_of
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

    def added_bytes(self, request: Request, origin: RecordOrigin) -> int:
        inputs = request.inputs
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
