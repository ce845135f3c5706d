"""Commit committed offsets to the consumer group: one request at a time, so that positions never cross."""

from __future__ import annotations

import asyncio
import logging

from aiokafka import errors as kafka_errors

from aggregator.sources.kafka.consumer.group import GroupMember
from aggregator.sources.kafka.consumer.partitions import Assignment
from aggregator.sources.kafka.consumer.reader import IntakeCounts

_LOG = logging.getLogger(__name__)

_STALE = (kafka_errors.IllegalGenerationError, kafka_errors.UnknownMemberIdError)


class Committer:
    """Sends commits, and takes every failure for what it is: never fatal, always counted."""

    def __init__(self, counts: IntakeCounts) -> None:
        self._counts = counts
        self._turn = asyncio.Lock()
        self._failing = False

    async def commit(self, member: GroupMember, assignment: Assignment, timeout_s: float) -> bool:
        """Commit every position that moved; True when the group has them all, or wants them no more.

        A commit of a generation that is over is refused by the coordinator: the new owner does the rest again.
        """
        async with self._turn:
            offsets = assignment.moved()
            if not offsets or assignment.stale or assignment.fenced:
                return True
            topic_ids = {tp: assignment.partitions[tp].topic_id for tp in offsets}
            try:
                async with asyncio.timeout(timeout_s):
                    words = await member.commit(assignment.generation, assignment.member_id, offsets)
            except (kafka_errors.KafkaError, TimeoutError) as error:
                self._failed(type(error), len(offsets))
                return False
            failed: dict[type[Exception], int] = {}
            for tp, offset in offsets.items():
                word = words.get(tp, kafka_errors.UnknownError)
                if word is None:
                    partition = assignment.partitions[tp]
                    if partition.topic_id == topic_ids[tp]:  # the topic may have been made again meanwhile
                        partition.committed = offset
                else:
                    failed[word] = failed.get(word, 0) + 1
            for word, count in failed.items():
                self._failed(word, count)
            assignment.stale = any(word in failed for word in _STALE)
            if not failed and self._failing:
                self._failing = False
                _LOG.info("committed again")
            return not failed or assignment.stale

    def _failed(self, error: type[Exception], partitions: int) -> None:
        self._counts.commit_failed(error.__name__)
        if not self._failing:
            self._failing = True
            _LOG.warning("could not commit", extra={"error": error.__name__, "partitions": partitions})
