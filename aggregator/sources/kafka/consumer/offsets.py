"""Ask what a group has committed: aiokafka overlooks the error of a whole answer, and takes it for no commits.

Beside each offset stands the id of its topic, so that it is never taken for one of another topic of the same name.
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
    """The question, for the group's coordinator."""
    by_topic: dict[str, list[int]] = {}
    for tp in tps:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return OffsetFetchRequest(group_id, list(by_topic.items()))


def topic_note(topic_id: bytes) -> str:
    """What is committed beside an offset; empty where the brokers know no ids."""
    return _NOTE + id_text(topic_id) if topic_id != NO_ID else ""


def committed_offsets(
    response: Any, tps: Sequence[TopicPartition], topic_id: bytes = NO_ID
) -> dict[TopicPartition, int]:
    """The offsets in its answer; partitions that the group has none of are left out, or only of a topic gone since.

    Raises KafkaError, also for a partition of which nothing is said: one without an offset is there, as -1.
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
                    "found an offset of a topic that was deleted since; it counts for nothing",
                    extra={"topic": topic, "partition": partition, "offset": offset},
                )
            found[TopicPartition(topic, partition)] = -1 if of_another else offset
    missing = [f"{tp.topic}/{tp.partition}" for tp in tps if tp not in found]
    if missing:
        raise KafkaError(f"the coordinator says nothing of {', '.join(missing)}")
    return {tp: offset for tp, offset in found.items() if offset >= 0}
