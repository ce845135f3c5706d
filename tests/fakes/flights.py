"""A producer whose records arrive, and are acknowledged or refused, when a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokafka.errors import ProducerClosed

from aggregator.sources.kafka.records import OnDelivered, OutgoingRecord


@dataclass(slots=True, eq=False)
class Flight:
    """Records on their way to the broker, and what will be said of each."""

    producer: FlightProducer
    records: Sequence[OutgoingRecord]
    landed: asyncio.Future[Sequence[Exception | None]]


@dataclass(slots=True, eq=False)
class Broker:
    """What is `written`, by topic and key; while `held`, flights wait in `under_way`."""

    held: bool = False
    under_way: list[Flight] = field(default_factory=list[Flight])
    written: set[tuple[str, bytes]] = field(default_factory=set[tuple[str, bytes]])

    def write(self, flight: Flight, refused: Sequence[bool] = ()) -> None:
        """Let records be written, but nothing be said of it."""
        for record, refusal in zip(flight.records, [*refused, *([False] * len(flight.records))], strict=False):
            if not refusal:
                self.written.add((record.topic, record.key or b""))

    def acknowledge(self, flight: Flight, refusals: Sequence[Exception | None] = ()) -> None:
        """Let all be written but what is refused, and its sender hear of it."""
        errors = [*refusals, *([None] * len(flight.records))][: len(flight.records)]
        self.write(flight, [error is not None for error in errors])
        self.under_way.remove(flight)
        flight.producer.tell(flight, errors)


class FlightProducer:
    """ports.Producer over a Broker; `acknowledged` is what it heard of, by topic and key."""

    def __init__(self, broker: Broker) -> None:
        self.acknowledged: set[tuple[str, bytes]] = set()
        self._broker = broker
        self._closed = False

    async def start(self) -> None:
        """Nothing to do."""

    async def send(
        self, records: Sequence[OutgoingRecord], on_delivered: OnDelivered | None = None
    ) -> Sequence[Exception | None]:
        """Wait for the word on each record. Raises ProducerClosed."""
        if self._closed:
            raise ProducerClosed
        flight = Flight(self, records, asyncio.get_running_loop().create_future())
        self._broker.under_way.append(flight)
        if not self._broker.held:
            self._broker.acknowledge(flight)
        words = await flight.landed
        if on_delivered is not None:
            on_delivered(range(len(records)), words)
        return words

    async def close(self, timeout_s: float) -> None:
        """Send no more; what is under way may still arrive."""
        del timeout_s
        self._closed = True
        for flight in self._broker.under_way:
            if flight.producer is self and not flight.landed.done():
                flight.landed.set_exception(ProducerClosed())

    def tell(self, flight: Flight, errors: Sequence[Exception | None]) -> None:
        """The broker's word came; whoever sent may wait for it no more."""
        if not flight.landed.done():
            for record, error in zip(flight.records, errors, strict=True):
                if error is None:
                    self.acknowledged.add((record.topic, record.key or b""))
            flight.landed.set_result(errors)
