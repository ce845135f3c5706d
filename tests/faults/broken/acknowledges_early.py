"""An aggregator that is broken on purpose: replies count as written before the broker has said so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from aggregator.__main__ import main
from aggregator.adapters.kafka_producer import KafkaProducer
from aggregator.ports import OutgoingRecord

_SENDING: set[asyncio.Task[object]] = set()
_really_send = KafkaProducer.send


async def send(self: KafkaProducer, records: Sequence[OutgoingRecord]) -> Sequence[Exception | None]:
    """In place of waiting for the broker's word."""
    task = asyncio.create_task(_really_send(self, records))
    _SENDING.add(task)
    task.add_done_callback(_SENDING.discard)
    return [None] * len(records)


if __name__ == "__main__":
    KafkaProducer.send = send  # type: ignore[method-assign]
    sys.exit(main())
