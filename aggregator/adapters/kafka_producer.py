"""Write replies and dead letters: idempotent, acknowledged by all replicas, in batches per partition."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.ports import OutgoingRecord
from aggregator.settings import KafkaSettings


class KafkaProducer:
    """ports.Producer over aiokafka."""

    def __init__(self, settings: KafkaSettings) -> None:
        pass

    async def start(self) -> None:
        """Connect; waits for a broker as long as that takes."""
        raise NotImplementedError

    async def send(self, records: Sequence[OutgoingRecord]) -> Sequence[Exception | None]:
        """Send and wait for the broker's word on each: None when acknowledged.

        An exception is final for its record: UnknownTopicOrPartitionError, TopicAuthorizationFailedError,
        MessageSizeTooLargeError, InvalidTopicError and their like, of aiokafka.errors. What can pass is waited for.
        Raises ProducerClosed when closed before every record has its word: nothing may be concluded of them.
        """
        raise NotImplementedError

    async def close(self, timeout_s: float) -> None:
        """Wait for what is out, at most this long, then disconnect."""
        raise NotImplementedError
