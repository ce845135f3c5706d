"""Ask what a group has committed: aiokafka overlooks the error of a whole answer, and takes it for no commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest


def offsets_request(group_id: str, tps: Sequence[TopicPartition]) -> OffsetFetchRequest:
    """The question, for the group's coordinator."""
    by_topic: dict[str, list[int]] = {}
    for tp in tps:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return OffsetFetchRequest(group_id, list(by_topic.items()))


def committed_offsets(response: Any, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The offsets in its answer; partitions that the group has none of are left out.

    Raises KafkaError, also for a partition of which nothing is said: one without an offset is there, as -1.
    """
    if error_code := getattr(response, "error_code", 0):  # version 1 has none of its own
        raise for_code(error_code)("what the group has committed")
    found: dict[TopicPartition, int] = {}
    for topic, partitions in response.topics:
        for partition, offset, _, error_code in partitions:
            if error_code:
                raise for_code(error_code)(f"the offset of {topic}/{partition}")
            found[TopicPartition(topic, partition)] = offset
    missing = [f"{tp.topic}/{tp.partition}" for tp in tps if tp not in found]
    if missing:
        raise KafkaError(f"the coordinator says nothing of {', '.join(missing)}")
    return {tp: offset for tp, offset in found.items() if offset >= 0}
