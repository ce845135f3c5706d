"""Put dead letters back: read to the present end of their topic, write them, remember the acknowledged ones."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import client_options, topics_seen
from aggregator.sources.kafka.offsets import Record
from aggregator.wings.redrive.dead_letters import Obstacle, Offsets, PutBack, Wanted, error_code, put_back

_MOST_AT_ONCE = 500  # bounds the dead letters that are put back twice after a crash
_POLL_MS = 200  # between two looks at whether to stop
_COORDINATOR_S = 30.0  # for the coordinator of a cluster's very first group
_SESSION_S = 6.0  # a killed run holds the group this long: the least that brokers allow by default
_JOIN_S = 30.0  # brokers let a group's first member wait for others, 3 s by default
_RETRY_S = 0.5  # as often as Kafka's own clients ask
_REQUEST_BYTES = 64 * 1024 * 1024  # the broker's limit decides
_UNSEEN = "missing, or not visible to this client"


class RedriveError(Exception):
    """The brokers or the dead-letter topic cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """One run: the dead letters of `letters_topic` that are `wanted`, `count` of them at most, at `rate` a second.

    `group` is the consumer group that remembers what was put back. A `dry` run writes and remembers nothing.
    """

    kafka: KafkaSettings
    letters_topic: str
    group: str
    wanted: Wanted = field(default_factory=Wanted)
    count: int | None = None
    rate: float | None = None
    dry: bool = False


@dataclass(slots=True)
class Redriven:
    """The outcomes of the dead letters, so far. `total` is how many offsets there are to look at, `read` how many were.

    `matched`: requested ones, put back or not. `done_before`: put back by an earlier run; `not_wanted`: not requested;
    `codes` and `topics` count those put back.
    """

    total: int = 0
    read: int = 0
    matched: int = 0
    put_back: int = 0
    done_before: int = 0
    not_wanted: int = 0
    stuck: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    topics: Counter[str] = field(default_factory=Counter[str])


async def redrive(plan: RedrivePlan, counts: Redriven, on_progress: Callable[[], None]) -> None:
    """Put dead letters back, counted in `counts`; `on_progress` is called often. Raises RedriveError or StartError.

    At least once: a run that is killed may have written dead letters that it had no time to remember. One run at a time
    is a member of the group, unless it is a dry one: two would put every dead letter back twice.
    """
    try:
        async with AsyncExitStack() as stack:
            await (await _open(plan, counts, on_progress, stack)).run()
    except KafkaError as error:
        raise RedriveError(f"Kafka at {plan.kafka.bootstrap_servers} failed: {error}") from error


async def _open(
    plan: RedrivePlan, counts: Redriven, on_progress: Callable[[], None], stack: AsyncExitStack
) -> _Redrive:
    options = client_options(plan.kafka)
    admin = AIOKafkaAdminClient(**options)
    stack.push_async_callback(admin.close)
    await admin.start()
    topics = await topics_seen(admin)
    if plan.letters_topic not in topics:
        raise RedriveError(f"topic {plan.letters_topic} is {_UNSEEN}")
    tps = [TopicPartition(plan.letters_topic, number) for number in range(topics[plan.letters_topic])]
    consumer = AIOKafkaConsumer(
        group_id=plan.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=int(_SESSION_S * 1000),
        **options,
    )
    stack.push_async_callback(consumer.stop)
    if plan.dry:
        await consumer.start()
        consumer.assign(tps)
    else:
        await _join(admin, consumer, plan, tps)
    starts, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
    committed = await _committed(admin, plan.group, tps)
    offsets: dict[TopicPartition, Offsets] = {}
    for tp in tps:
        found = committed.get(tp)
        done = Offsets(found.offset, found.metadata) if found and found.offset >= 0 else Offsets(starts[tp])
        done.pass_over(0, starts[tp])  # retention may have overtaken it
        consumer.seek(tp, done.position)
        counts.total += max(0, ends[tp] - done.position)
        offsets[tp] = done
    producer = AIOKafkaProducer(
        enable_idempotence=True,
        max_request_size=_REQUEST_BYTES,  # the topic decides which record is too large
        **options,
    )
    stack.push_async_callback(producer.stop)
    await producer.start()
    return _Redrive(plan, counts, on_progress, consumer, producer, topics=frozenset(topics), offsets=offsets, ends=ends)


async def _join(
    admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer, plan: RedrivePlan, tps: Sequence[TopicPartition]
) -> None:
    """Become the only member of the group. Raises RedriveError while it has another one."""
    deadline_s = time.monotonic() + _SESSION_S + _RETRY_S
    while await _members(admin, plan.group):
        if time.monotonic() > deadline_s:
            raise _in_use(plan.group)
        await asyncio.sleep(_RETRY_S)  # a run that was killed is a member until its session ends
    await consumer.start()
    consumer.subscribe([plan.letters_topic])
    deadline_s = time.monotonic() + _JOIN_S
    while not consumer.assignment():
        if time.monotonic() > deadline_s:
            raise RedriveError(f"group {plan.group} took no member within {_JOIN_S:g} s")
        await asyncio.sleep(_RETRY_S)
    if await _members(admin, plan.group) > 1 or consumer.assignment() != set(tps):  # it came at the same moment
        raise _in_use(plan.group)


def _in_use(group: str) -> RedriveError:
    return RedriveError(f"another redrive is at work: group {group} has a member. Wait for its end, or name a --group")


async def _members(admin: AIOKafkaAdminClient, group: str) -> int:
    """How many members the group has."""
    (answer,) = await _with_coordinator(lambda: admin.describe_consumer_groups([group]))
    (found,) = answer.to_object()["groups"]
    if error := found["error_code"]:
        raise for_code(error)(group)
    return len(found["members"])


async def _committed(
    admin: AIOKafkaAdminClient, group: str, tps: list[TopicPartition]
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """The group's committed positions."""
    found: Mapping[TopicPartition, OffsetAndMetadata] = await _with_coordinator(
        lambda: admin.list_consumer_group_offsets(group, partitions=tps)
    )
    return found


async def _with_coordinator(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask a group's coordinator; a cluster's very first group waits until it is made. Raises KafkaError."""
    deadline_s = time.monotonic() + _COORDINATOR_S
    while True:
        try:
            return await ask()
        except KafkaError as error:
            if not error.retriable or time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(_RETRY_S)


class _Redrive:
    """A run. Dead letters go a handful at a time: written, acknowledged, remembered; then the next."""

    def __init__(
        self,
        plan: RedrivePlan,
        counts: Redriven,
        on_progress: Callable[[], None],
        consumer: AIOKafkaConsumer,
        producer: AIOKafkaProducer,
        *,
        topics: frozenset[str],
        offsets: Mapping[TopicPartition, Offsets],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        self._plan = plan
        self._counts = counts
        self._on_progress = on_progress
        self._consumer = consumer
        self._producer = producer
        self._topics = topics
        self._offsets = offsets
        self._read_to = {tp: done.position for tp, done in offsets.items()}
        self._ends = ends
        self._due_s = time.monotonic()

    async def run(self) -> None:
        """Until every dead letter that was there at the start was looked at, or as many went as were requested."""
        plan, at_once = self._plan, _MOST_AT_ONCE
        if plan.rate is not None:
            at_once = max(1, min(at_once, int(plan.rate)))  # so that a second's work is remembered at a time
        left = {tp for tp, done in self._offsets.items() if done.position < self._ends[tp]}
        self._consumer.pause(*(self._offsets.keys() - left))
        while left and not self._enough():
            fetched = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=at_once)
            for tp, letters in fetched.items():
                await self._deal_with(tp, [letter for letter in letters if letter.offset < self._ends[tp]])
            for tp in tuple(left):
                if await self._consumer.position(tp) >= self._ends[tp]:
                    left.discard(tp)
                    self._consumer.pause(tp)
            self._on_progress()
        self._on_progress()

    def _enough(self) -> bool:
        return self._plan.count is not None and self._counts.put_back >= self._plan.count

    async def _deal_with(self, tp: TopicPartition, letters: Sequence[Record]) -> None:
        done, counts = self._offsets[tp], self._counts
        going: list[tuple[Record, PutBack]] = []
        for letter in letters:
            if self._plan.count is not None and counts.put_back + len(going) >= self._plan.count:
                self._consumer.seek(tp, letter.offset)  # it takes the place of a dead letter that cannot be written
                break
            done.pass_over(self._read_to[tp], letter.offset)
            self._read_to[tp] = letter.offset + 1
            counts.read += 1
            is_wanted = self._plan.wanted.includes(letter)
            counts.matched += is_wanted
            if letter.offset in done:
                counts.done_before += 1
            elif not is_wanted:
                counts.not_wanted += 1
            elif isinstance(record := put_back(letter, self._plan.wanted, tp.topic), Obstacle):
                counts.stuck[record.value] += 1
            else:
                going.append((letter, record))
        await self._write(going, done)
        if letters and not self._plan.dry:
            await self._consumer.commit({tp: OffsetAndMetadata(done.position, done.metadata())})

    async def _write(self, going: Sequence[tuple[Record, PutBack]], done: Offsets) -> None:
        written = [(letter, record, await self._send(record)) for letter, record in going]
        for letter, record, answer in written:
            why = answer if isinstance(answer, str) else await _word(answer)
            if why and not isinstance(answer, str):  # its whole batch may have been refused on another's account
                again = await self._send(record)
                why = again if isinstance(again, str) else await _word(again)
            if why:
                self._counts.stuck[why] += 1
                continue
            done.put_back(letter.offset)
            self._counts.put_back += 1
            self._counts.codes[error_code(letter) or "none"] += 1
            self._counts.topics[record.topic] += 1

    async def _send(self, record: PutBack) -> asyncio.Future[Any] | str:
        """The broker's answer to come, or why nothing was sent; empty in a dry run that would have sent it."""
        if record.topic not in self._topics:
            return f"topic {record.topic} is {_UNSEEN}"
        if self._plan.dry:
            return ""
        if self._plan.rate is not None:
            await asyncio.sleep(self._due_s - time.monotonic())
            self._due_s = max(self._due_s, time.monotonic() - 1.0) + 1 / self._plan.rate
        try:
            answer: asyncio.Future[Any] = await self._producer.send(
                record.topic, value=record.value, key=record.key, headers=record.headers
            )
        except KafkaError as error:
            return type(error).__name__
        return answer


async def _word(answer: asyncio.Future[Any]) -> str:
    """Why a record was not written; empty when it was."""
    try:
        await answer
    except KafkaError as error:
        return type(error).__name__
    return ""
