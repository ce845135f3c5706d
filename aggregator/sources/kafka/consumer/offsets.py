"""Ask for a group's committed offsets: aiokafka ignores a response's top-level error, and reports no offsets.

The id of the topic is committed with each offset, as its metadata, so that it is not taken for another topic's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest

from aggregator.sources.kafka.consumer.topic_ids import NO_ID, id_text

_LOG = logging.getLogger(__name__)

_NOTE = "topic-id="


def offsets_request(group_id: str, tps: Sequence[TopicPartition]) -> OffsetFetchRequest:
    """The request, for the group's coordinator."""
    by_topic: dict[str, list[int]] = {}
    for tp in tps:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return OffsetFetchRequest(group_id, list(by_topic.items()))


def topic_note(topic_id: bytes) -> str:
    """The metadata of a committed offset; empty if the brokers know no topic ids."""
    return _NOTE + id_text(topic_id) if topic_id != NO_ID else ""


def committed_offsets(
    response: Any, tps: Sequence[TopicPartition], topic_id: bytes = NO_ID
) -> dict[TopicPartition, int]:
    """The offsets in the response; partitions without one, or with one of a deleted topic, are left out.

    Raises KafkaError, also if a partition is missing: one without an offset is listed with -1.
    """
    if error_code := getattr(response, "error_code", 0):  # version 1 has none of its own
        raise for_code(error_code)("what the group has committed")
    found: dict[TopicPartition, int] = {}
    own_note = topic_note(topic_id)
    for topic, partitions in response.topics:
        for partition, offset, note, error_code in partitions:
            if error_code:
                raise for_code(error_code)(f"the offset of {topic}/{partition}")
            of_another = own_note and note and note.startswith(_NOTE) and note != own_note
            if of_another:
                _LOG.error(
                    "ignored a committed offset of a deleted topic",
                    extra={"topic": topic, "partition": partition, "offset": offset},
                )
            found[TopicPartition(topic, partition)] = -1 if of_another else offset
    missing = [f"{tp.topic}/{tp.partition}" for tp in tps if tp not in found]
    if missing:
        raise KafkaError(f"the coordinator does not list {', '.join(missing)}")
    return {tp: offset for tp, offset in found.items() if offset >= 0}
