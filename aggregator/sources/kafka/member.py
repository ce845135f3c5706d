"""One member of the consumer group: an aiokafka consumer, used by its public methods, and its partitions.

A member is never repaired. A fault that aiokafka does not mend ends the member, and a fresh one takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors
from typing_extensions import override

from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.aiokafka_internals import stray_cancellation_as_error
from aggregator.sources.kafka.connection import TopicWatch
from aggregator.sources.kafka.faults import FaultHandler, ReadByHand
from aggregator.sources.kafka.offsets import Committed, Fault, InFlightRecord, OnFenced, Partition

_LOG = logging.getLogger(__name__)

REJOIN_MARGIN_S = 10.0  # for the others to give back their partitions and the group to be whole
_POLL_S = 0.05  # a completed record sends no signal
_COMMIT_TIMEOUT_S = 5.0  # a coordinator that does not answer is asked again
_ASK_S = 5.0  # a broker that does not answer must not end the placing or reading of others
_RETRY_S = 1.0  # longer than any poll: a gap says that nothing was to be read
_BLOCKED_S = 10.0  # rights are granted by people
_LEADER_S = 1.0  # a partition without a leader delays no other
_PLACE_AGAIN_S = 0.5  # electing a leader takes about a second
_FIRST_RECORDS = 8
"""Of a poll: their sizes say how many more it may ask for, as a poll is bounded in records only."""
_GROWTH = 5  # 8, 40, 240 and the rest: four polls of 1,000 records take 60 us more than one
_NO_PARTITION = TopicPartition("", -1)
LookUp = Callable[[KafkaSettings, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Committed]]]
"""What the group has of each partition. Raises KafkaError."""


async def placed(
    settings: KafkaSettings, client: Any, look_up: LookUp, tps: Collection[TopicPartition]
) -> AsyncIterator[Partition]:
    """Each partition at its committed offset; without one, at the log's start, which is to be committed.

    Ends without those that cannot be looked up now: a partition without a leader delays no other.
    """
    asking: dict[asyncio.Future[Any], TopicPartition] = {}
    try:
        async with asyncio.timeout(_ASK_S):
            committed = await look_up(settings, tps)
        for tp, (offset, metadata, topic_id) in committed.items():
            if offset >= 0:
                yield Partition(tp, offset, offset, metadata, topic_id)
            else:
                asking[asyncio.ensure_future(client.beginning_offsets([tp]))] = tp
        if asking:
            done, _ = await asyncio.wait(asking, timeout=_LEADER_S)
            for each in [each for each in done if each.exception() is None]:
                tp, offset = asking[each], each.result()[asking[each]]
                _LOG.info("started a partition", extra={"topic": tp.topic, "partition": tp.partition, "offset": offset})
                yield Partition(tp, offset, None, topic_id=committed[tp].topic_id)
    except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
        _LOG.warning("could not look up start offsets", extra={"error": repr(error)})
        await asyncio.sleep(_PLACE_AGAIN_S)
    finally:
        for each in asking:
            each.cancel()


class Member(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """From joining the group until `run` returns or raises. `on_change` is called when there may be more to read."""

    def __init__(
        self,
        settings: KafkaSettings,
        metrics: Metrics,
        on_fenced: OnFenced,
        *,
        on_change: Callable[[], None],
        client: Any,
        look_up: LookUp,
        read_by_hand: ReadByHand,
    ) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.client = client
        self._settings = settings
        self._session_s = settings.client.session_timeout_s
        self._metrics = metrics
        self._on_fenced = on_fenced
        self._on_change = on_change
        self._look_up = look_up
        self._faults = FaultHandler(settings, client, metrics, on_fenced, read_by_hand)
        self._loop = asyncio.get_running_loop()
        self._topics = TopicWatch(client, [topic.name for topic in settings.topics])
        self._unplaced: set[TopicPartition] = set()
        self._joined = self._giving_back = False
        self._end_by_s: float | None = None
        self._asked_s = self._fetched_s = self._loop.time()
        self._fetched_ms = 0
        self._commits = Commits(client, metrics)
        self._due = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def healthy(self) -> bool:
        """Whether the group confirmed this member within the session time-out, and every topic is there."""
        confirmed = not self._commits.removed and self._loop.time() - self._commits.confirmed_s <= self._session_s
        return self._joined and confirmed and not self._topics.missing and self._failure is None

    async def run(self) -> None:
        """Join; place, commit and watch until `end`; commit the last.

        Raises an error that only a fresh member cures.
        """
        await self.client.start()
        self.client.subscribe(self._topics.subscribed, listener=self)
        while self._end_by_s is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.client.commit_interval_s):
                    await self._due.wait()
            self._due.clear()
            await self._place()
            await self._handle_faults()
            await self.commit()
            await self._watch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._end_by_s):
                while not await self.commit() and not self._commits.removed:  # noqa: ASYNC110 - tries
                    await asyncio.sleep(_POLL_S)

    def end(self, timeout_s: float) -> None:
        """Stop reading; let `run` commit what is complete within the time-out, and return."""
        self._giving_back = True
        self._end_by_s = self._loop.time() + timeout_s
        self._due.set()

    # Partitions come and go.

    @override
    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - may be one
        """The group has a new generation; `run` places its partitions."""
        self._unplaced = set(assigned)
        self._joined, self._giving_back = True, self._end_by_s is not None
        self._commits.joined()
        self._fetched_s = self._loop.time()
        _LOG.info("joined the consumer group", extra={"partitions": len(self._unplaced)})
        self._due.set()

    @override
    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - may be one
        if tuple(revoked):
            self._metrics.rebalances.add(1)
        await self._drain()

    async def _drain(self) -> None:
        """Stop reading, wait for in-flight records, commit them, and fence the rest."""
        self._unplaced, self._giving_back = set(), True
        if not self.partitions:
            return
        until_s = self._loop.time() + self._settings.client.drain_timeout_s
        self._commits.confirmed_s = until_s + REJOIN_MARGIN_S  # nothing confirms it before the group is whole
        try:
            while self._loop.time() < until_s and not self._commits.removed and self._end_by_s is None:
                if not any(partition.committed_offset.unfinished for partition in self.partitions.values()):
                    break
                await asyncio.sleep(0.01)  # a completed record sends no signal
            await self.commit()
        finally:
            self.fence()

    def fence(self) -> None:
        """End with the present partitions, and report which records are not complete."""
        partitions, self.partitions, self._unplaced = self.partitions, {}, set()
        unfinished = [each for partition in partitions.values() for each in partition.committed_offset.fence()]
        if unfinished:
            _LOG.warning("partitions were revoked with records in flight", extra={"records": len(unfinished)})
            self._on_fenced(unfinished)

    async def _place(self) -> None:
        """Start to read the new partitions, unless they are revoked before that."""
        unplaced = self._unplaced
        if not unplaced:
            return
        async for partition in placed(self._settings, self.client, self._look_up, tuple(unplaced)):
            if self._unplaced is not unplaced:
                return
            unplaced.discard(partition.tp)
            self._resume_reading(partition)
        if self._unplaced:
            self._due.set()

    def _resume_reading(self, partition: Partition) -> None:
        self.partitions[partition.tp] = partition
        self._seek(partition)
        self._on_change()

    def _seek(self, partition: Partition) -> None:
        with contextlib.suppress(kafka_errors.IllegalStateError):  # it was revoked
            self.client.seek(partition.tp, partition.read_to)

    # Records come in.

    async def read(self, paused_topics: frozenset[str], room_bytes: int) -> bool:
        """Fetch the next records of the partitions that may be read, at most about `room_bytes`.

        False if none may be read now.
        """
        now_s = self._loop.time()
        asked = [each for each in self.partitions.values() if self._may_read(each, paused_topics, now_s)]
        if not asked or self._giving_back or self._failure is not None:
            return False
        if now_s - self._asked_s > _RETRY_S:
            self._fetched_s = now_s
        self._asked_s = now_s
        try:
            await self._fetch(asked, room_bytes)
        except Exception as error:  # noqa: BLE001 - a record that cannot be decoded raises anything
            self._record_fault(error, asked)
        return True

    async def _fetch(self, asked: Sequence[Partition], room_bytes: int) -> None:
        """Poll for a few records, then for as many more of their size as there is room for."""
        tps = [each.tp for each in asked]
        wait_s, most = _POLL_S, self._settings.client.max_poll_records
        count = min(_FIRST_RECORDS, most)
        held_bytes = sum(each.committed_offset.held_bytes for each in asked)
        records = taken = 0
        while count > 0:
            found = await self._poll(tps, wait_s, count)
            for partition in asked if not records else [each for each in asked if each.tp in found]:
                await self._buffer(partition, found.get(partition.tp, ()))
            new = sum(map(len, found.values()))
            if new < count:
                return
            records += new
            taken = sum(each.committed_offset.held_bytes for each in asked) - held_bytes
            count = min(most - records, _GROWTH * records, records * (room_bytes - taken) // max(1, taken))
            wait_s = 0.0

    def _may_read(self, partition: Partition, paused_topics: frozenset[str], now_s: float) -> bool:
        partition.watch_span(self._settings.client.max_commit_span)
        waits = partition.fetched or partition.fault or partition.over_span or partition.blocked_until_s > now_s
        return not waits and partition.tp.topic not in paused_topics

    async def _poll(self, tps: Sequence[TopicPartition], wait_s: float, count: int) -> Mapping[TopicPartition, Any]:
        """The next records of these partitions; none during a rebalance, for whose end aiokafka waits without limit."""
        try:
            with stray_cancellation_as_error():
                async with asyncio.timeout(wait_s + _POLL_S):
                    found: Mapping[TopicPartition, Any] = await self.client.getmany(
                        *tps, timeout_ms=int(wait_s * 1000), max_records=count
                    )
                    return found
        except TimeoutError:
            return {}

    async def _buffer(self, partition: Partition, records: Sequence[Any]) -> None:
        tp, current = partition.tp, self.partitions.get(partition.tp)
        if current is not partition or self._giving_back:
            if current is not None:  # of another assignment: its records are fetched again
                self._seek(current)
            return
        partition.buffer(records, await self.client.position(tp))  # after transaction markers and compacted offsets
        partition.log_end = self.client.highwater(tp) or partition.log_end
        fetched_ms, now_s = self.client.last_poll_timestamp(tp) or 0, self._loop.time()
        if records or fetched_ms != self._fetched_ms:
            self._fetched_ms, self._fetched_s = fetched_ms, now_s

    def _record_fault(self, error: Exception, asked: Sequence[Partition]) -> None:
        """Go back to what was kept last, as aiokafka drops good records with an error, and note which fault it is."""
        current = [partition for partition in asked if self.partitions.get(partition.tp) is partition]
        for partition in current:
            self._seek(partition)
        if isinstance(error, kafka_errors.IllegalStateError):
            return  # the group rebalances
        if isinstance(error, kafka_errors.OffsetOutOfRangeError):
            for partition in [each for each in current if each.tp in error.args[0]]:
                partition.fault = Fault.OUT_OF_RANGE
        elif isinstance(error, kafka_errors.TopicAuthorizationFailedError):
            _LOG.error("not authorised to read a topic; its partitions wait", extra={"topics": error.args})
            for partition in [each for each in current if each.tp.topic in error.args]:
                partition.blocked_until_s = self._loop.time() + _BLOCKED_S
        elif isinstance(error, kafka_errors.CorruptRecordException) or not isinstance(error, kafka_errors.KafkaError):
            for partition in [each for each in current if str(each.tp) in str(error)] or current:
                partition.fault = None if partition.fetched else Fault.UNDECODABLE
        else:
            self._failure = error
        self._due.set()

    async def _handle_faults(self) -> None:
        """Find where partitions with a fault are read on; the others are read at the same time."""
        for tp, partition in list(self.partitions.items()):
            if partition.fault is None or partition.blocked_until_s > self._loop.time():
                continue
            try:
                async with asyncio.timeout(_ASK_S):
                    good = await self._faults.handle(partition, lambda: self.partitions.get(tp) is partition)  # noqa: B023 - awaited here
                    if good is not None and good is not partition:  # of a topic that was made anew
                        found = await self._look_up(self._settings, [tp])
                        good.committed_offset.topic_id = found[tp].topic_id
            except (kafka_errors.KafkaError, TimeoutError) as error:
                _LOG.warning("could not look at a log again", extra={"topic": tp.topic, "error": repr(error)})
            else:
                if good is not None:
                    self._resume_reading(good)

    def deliver(self, paused_topics: frozenset[str]) -> list[InFlightRecord]:
        """Hand out what was fetched and is not paused; nothing once partitions are revoked."""
        return [
            in_flight
            for tp, partition in (() if self._giving_back else self.partitions.items())
            if partition.fetched and tp.topic not in paused_topics
            for in_flight in partition.deliver()
        ]

    async def commit(self) -> bool:
        """Commit every position that moved; True if the group has them all."""
        return await self._commits.commit(self.partitions)

    async def _watch(self) -> None:
        """Look for faults that no call reports. Raises KafkaError if this member is stuck."""
        await self._poll([_NO_PARTITION], 0.0, 1)  # raises what ended the coordination, even if nothing may be read
        now_s = self._loop.time()
        if self._failure is not None:
            raise self._failure
        if self._joined and not self._giving_back and now_s >= self._commits.confirmed_s + self._session_s / 4:
            await self._commits.probe(self.partitions, self._settings.topics[0].name)
        if now_s > self._commits.confirmed_s + 2 * self._session_s + REJOIN_MARGIN_S:
            silent_s = now_s - self._commits.confirmed_s
            raise kafka_errors.KafkaError(f"the group has not confirmed this member for {silent_s:.0f} s")
        if now_s - self._asked_s < _RETRY_S and not self._giving_back and now_s > self._fetched_s + self._session_s:
            raise kafka_errors.KafkaError(f"nothing was fetched for {now_s - self._fetched_s:.0f} s")
        if await self._topics.look(self.partitions, now_s):
            await self._drain()
            self.client.subscribe(self._topics.subscribed, listener=self)


class Commits:
    """Sends one request at a time.

    `removed`: the group went on without this member. `confirmed_s`: when it last counted this member in.
    """

    def __init__(self, client: Any, metrics: Metrics) -> None:
        self.removed = False
        self.confirmed_s = asyncio.get_running_loop().time()
        self._client = client
        self._metrics = metrics
        self._sending = asyncio.Lock()
        self._failing = False
        self._carries_metadata = True

    def joined(self) -> None:
        self.removed = False
        self.confirmed_s = asyncio.get_running_loop().time()

    async def commit(self, partitions: Mapping[TopicPartition, Partition], *, all_positions: bool = False) -> bool:
        """Commit every position that moved, or all; True if the group has them.

        Each topic's offsets go by themselves, so that those of a deleted topic hold no other's.
        """
        async with self._sending:
            if self.removed:
                return False
            sent = {tp: each for tp, each in partitions.items() if all_positions or each.moved}
            topics: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
            highest = {tp: partition.committed_offset.highest for tp, partition in sent.items()}
            for tp, partition in sent.items():
                if self._client.partitions_for_topic(tp.topic):  # aiokafka would try those of a missing one without end
                    position = partition.committed_offset.position
                    metadata = partition.committed_offset.metadata if self._carries_metadata else ""
                    topics.setdefault(tp.topic, {})[tp] = position, metadata
            errors = {error for offsets in topics.values() if (error := await self._send(sent, offsets, highest))}
            if errors:
                self._metrics.commit_failures.add(len(errors))
            if bool(errors) != self._failing and topics:
                self._failing = bool(errors)
                says = "could not commit" if errors else "commits succeed again"
                _LOG.warning(says, extra={"errors": sorted(errors)})
            return not errors

    async def _send(
        self,
        sent: Mapping[TopicPartition, Partition],
        offsets: Mapping[TopicPartition, tuple[int, str]],
        highest: Mapping[TopicPartition, int],
    ) -> str:
        """Why the group does not have these offsets; empty if it has."""
        try:
            async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                await self._client.commit(offsets)
        except (kafka_errors.KafkaError, TimeoutError) as error:
            cause = error.__cause__ if isinstance(error, kafka_errors.CommitFailedError) else None
            if isinstance(cause or error, kafka_errors.OffsetMetadataTooLargeError):
                self._carries_metadata = False  # the broker takes less than Kafka's default: the next try has none
                return repr(cause or error)
            self.removed |= cause is not None and not isinstance(cause, kafka_errors.RebalanceInProgressError)
            return repr(cause or error)
        for tp, (offset, _) in offsets.items():
            sent[tp].committed, sent[tp].committed_highest = offset, highest[tp]
        self._confirm()
        return ""

    async def probe(self, partitions: Mapping[TopicPartition, Partition], topic: str) -> None:
        """Commit again the offsets that the group has; without partitions, ask for a committed offset."""
        if partitions:
            await self.commit(partitions, all_positions=True)
            return
        with contextlib.suppress(kafka_errors.KafkaError, TimeoutError):
            async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                await self._client.committed(TopicPartition(topic, 0))
                self._confirm()

    def _confirm(self) -> None:
        self.confirmed_s = max(self.confirmed_s, asyncio.get_running_loop().time())
