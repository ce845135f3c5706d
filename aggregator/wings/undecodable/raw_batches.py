"""Fetch record batches as they are: not public in aiokafka, checked against aiokafka 0.14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.protocol.fetch import FetchRequest

_WAIT_MS = 100  # the records are there: the broker need not wait for more
_MAX_BYTES = 1024 * 1024  # a broker sends at least one batch, however large
_READ_COMMITTED = 1  # the isolation level in Kafka's protocol
_NAMES_REPLICA = 11
"""From this version on, a fetch response has a field between the aborted transactions and the records."""

AbortedTransaction = tuple[int, int]
"""The id of its producer, and its first offset."""


async def raw_batches(
    consumer: Any, tp: TopicPartition, offset: int
) -> tuple[bytes, Sequence[AbortedTransaction], int]:
    """The bytes of the record batches from the one with `offset` on, aborted transactions among them, the log's end.

    The consumer's own methods raise for a record that cannot be decoded, and drop its neighbours. Raises KafkaError.
    """
    client = consumer._client  # noqa: SLF001
    part = [(tp.topic, [(tp.partition, offset, _MAX_BYTES)])]
    request = FetchRequest(_WAIT_MS, 1, _MAX_BYTES, _READ_COMMITTED, part)
    response = await client.send(client.cluster.leader_for_partition(tp), request)
    for _, partitions in response.topics:
        for _, code, log_end, *found in partitions:
            if code:
                raise kafka_errors.for_code(code)(tp)
            aborted = found[-3 if response.API_VERSION >= _NAMES_REPLICA else -2]
            return bytes(found[-1] or b""), aborted or (), log_end
    raise kafka_errors.UnknownTopicOrPartitionError(f"{tp.topic}/{tp.partition}")
