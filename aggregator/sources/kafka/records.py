"""Records that are consumed and produced, and the producer's interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Header = tuple[str, bytes]

REDRIVES = "dlt-redrives"
"""The header that a dead letter is put back with: how often that was done."""


class Record(Protocol):
    """One Kafka record as it was read; an aiokafka ConsumerRecord is one."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


@dataclass(slots=True, eq=False)
class RawRecord:
    """A Record that aiokafka does not decode; `unreadable` is the reason, empty if this one is good."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    unreadable: str = ""


@dataclass(slots=True, eq=False)
class ReplyRoute:
    """Where and how to reply: `headers` are the reply's, its content type, then the routing and trace headers.

    Records without headers share their topic's, so none is ever changed. `on_progress` is called whenever the
    generated text has grown.
    """

    topic: str
    partition: int | None
    json: bool
    headers: Sequence[Header]
    on_progress: Callable[[], None] | None = None


NOWHERE = ReplyRoute("", None, json=False, headers=())
"""Of a record that is not decoded yet."""


@dataclass(slots=True, eq=False)  # one per record: a frozen one costs four times as much to make
class OutgoingRecord:
    """A reply, a delta or a dead letter to produce."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


DeliveryResult = Exception | None
"""Of one record: None if the broker acknowledged it, else why it never will."""

Delivered = Sequence[tuple[int, DeliveryResult]]
"""Of some of the records sent: the position and the delivery result of each."""


class Producer(Protocol):
    """Kafka output: acks=all, in batches."""

    async def start(self) -> None:
        """Connect; waits for a broker without limit. Raises StartError for security files that cannot be read."""
        ...

    def send(self, records: Sequence[OutgoingRecord]) -> AsyncIterator[Delivered]:
        """Send, and yield the delivery results as they come: a partition without a leader delays no other.

        An exception is final for its record: UnknownTopicOrPartitionError, TopicAuthorizationFailedError,
        InvalidTopicError, MessageSizeTooLargeError and similar ones of aiokafka.errors. Other errors are retried.
        Raises ProducerClosed if closed before every record has its result: the outcome of the others is unknown.
        """
        ...

    async def close(self, timeout_s: float) -> None:
        """Wait for unacknowledged records, at most this long, then disconnect; what waits fails with ProducerClosed."""
        ...
