"""An aggregator that is broken on purpose: replies count as written before the broker has said so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from aggregator.__main__ import main
from aggregator.adapters.kafka_producer import KafkaProducer
from aggregator.ports import Heard, OutgoingRecord

_SENDING: set[asyncio.Task[object]] = set()
_really_send = KafkaProducer.send


async def send(
    self: KafkaProducer, records: Sequence[OutgoingRecord], heard: Heard | None = None
) -> Sequence[Exception | None]:
    """In place of waiting for the broker's word."""
    task = asyncio.create_task(_really_send(self, records))
    _SENDING.add(task)
    task.add_done_callback(_SENDING.discard)
    words: list[Exception | None] = [None] * len(records)
    if heard is not None:
        heard(range(len(records)), words)
    return words


if __name__ == "__main__":
    KafkaProducer.send = send  # type: ignore[method-assign]
    sys.exit(main())
