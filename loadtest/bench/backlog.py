"""A topic full of unique queries, and how fast a process works it off, in CPU time and in replies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from loadtest.clients.messages import NO_WISHES, request
from loadtest.options import unique
from loadtest.processor import cpu_s
from loadtest.questions import bundled_questions

PARTITIONS = 8
REQUESTS = "bench.requests"
_BATCH_BYTES = 512 * 1024
_PER_BATCH = 500
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a process was at one moment: its CPU time, all threads, and the replies it had written."""

    at_s: float
    cpu_s: float
    replies: int


async def create_topics(bootstrap: str, names: Sequence[str]) -> None:
    """Topics of 8 partitions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    finally:
        await admin.close()


async def fill(bootstrap: str, count: int) -> None:
    """Put `count` queries into the request topic: real questions, no two the same."""
    questions = bundled_questions()
    texts = unique([questions[number % len(questions)] for number in range(count)])
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=_BATCH_BYTES
    ) as producer:
        for start in range(0, count, _PER_BATCH):
            batch = producer.create_batch()
            for number in range(start, min(start + _PER_BATCH, count)):
                value = request([texts[number]], f"bench-{number}", NO_WISHES).SerializeToString()
                batch.append(timestamp=None, key=str(number).encode(), value=value)
            await producer.send_batch(batch, REQUESTS, partition=start // _PER_BATCH % PARTITIONS)


async def watch(
    bootstrap: str, topic: str, pid: int, *, count: int, timeout_s: float, on_look: Callable[[Progress], None]
) -> None:
    """Look at a process now and then until it has written `count` replies; raises TimeoutError."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with asyncio.timeout(timeout_s), AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign(partitions)
        replies = 0
        while replies < count:
            used_s = cpu_s(pid)
            replies = sum((await consumer.end_offsets(partitions)).values())
            on_look(Progress(time.monotonic(), used_s, replies))
            await asyncio.sleep(_POLL_S)


def between(looks: Sequence[Progress], count: int, start: float = 0.15, end: float = 0.95) -> tuple[Progress, Progress]:
    """The looks nearest to these shares of `count`: without the start, and without the end, when little is left."""
    first = min(looks, key=lambda look: abs(look.replies - start * count))
    last = min(looks, key=lambda look: abs(look.replies - end * count))
    assert last.replies > first.replies, "The run was too short to be looked at twice: measure more queries."
    return first, last


def cpu_us_per_query(looks: Sequence[Progress], count: int) -> float:
    """CPU time per query of the steady part."""
    first, last = between(looks, count)
    return (last.cpu_s - first.cpu_s) / (last.replies - first.replies) * 1e6
