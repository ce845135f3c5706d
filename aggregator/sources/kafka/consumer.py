"""Read the query topics as a member of the consumer group: records in, commits out.

One member after another takes part in the group. A fresh member starts at the committed offsets: it may read records
again, and misses none: every committed offset has only acknowledged records before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka_errors
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from aggregator.admission.ledger import MEMORY_BYTES, Intake, Ledger
from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.aiokafka_internals import (
    abandon_consumer,
    space_metadata_updates,
    stray_cancellation_as_error,
)
from aggregator.sources.kafka.connection import at_work, client_options, committed_offsets
from aggregator.sources.kafka.faults import ReadByHand, wait_for_people
from aggregator.sources.kafka.holdings import Holdings
from aggregator.sources.kafka.member import REJOIN_MARGIN_S, LookUp, Member
from aggregator.sources.kafka.offsets import InFlightRecord, OnFenced, Partition

_LOG = logging.getLogger(__name__)

_RECONNECT_S = 1.0  # a broker that restarts takes seconds
_STOP_S = 1.0  # of half the time-out, for the end of the connection
_NEVER_MS = 2**31 - 1  # the largest that Kafka takes


def new_client(settings: KafkaSettings) -> Any:
    rebalance_s = settings.client.drain_timeout_s + REJOIN_MARGIN_S
    consumer = AIOKafkaConsumer(
        **client_options(settings),
        group_id=settings.group_id,
        enable_auto_commit=False,
        auto_offset_reset="none",  # start and out-of-range positions are decided by the member, and counted
        isolation_level="read_committed",
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        session_timeout_ms=int(settings.client.session_timeout_s * 1000),
        heartbeat_interval_ms=int(min(1.0, settings.client.session_timeout_s / 3) * 1000),
        rebalance_timeout_ms=int(rebalance_s * 1000),
        request_timeout_ms=int((rebalance_s + REJOIN_MARGIN_S) * 1000),
        max_poll_interval_ms=_NEVER_MS,  # back-pressure may stop fetching for any time
        fetch_max_wait_ms=100,
        fetch_max_bytes=16 * 1024 * 1024,
        max_partition_fetch_bytes=1024 * 1024,
        metadata_max_age_ms=30_000,  # new partitions are found this soon
    )
    return space_metadata_updates(consumer)


@dataclass(eq=False)
class KafkaConsumer:
    """Reads the query topics. `run` keeps a member in the group; `fetch` reads by it; the other methods describe it.

    aiokafka keeps one response per partition until that is read. Paused partitions are not read.
    """

    settings: KafkaSettings
    on_fenced: OnFenced
    metrics: Metrics
    client: Callable[[KafkaSettings], Any] = new_client
    look_up: LookUp = committed_offsets
    intake: Intake = field(default_factory=lambda: Ledger(MEMORY_BYTES).intake)
    read_by_hand: ReadByHand = wait_for_people
    holdings: Holdings = field(init=False)
    _member: Member | None = None
    _paused: frozenset[str] = frozenset()
    _fetching: bool = True
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _stop_timeout_s: float = _STOP_S

    def __post_init__(self) -> None:
        self.holdings = Holdings(
            self.intake, lambda: [partition.committed_offset for partition in self.partitions.values()]
        )
        self._ended.set()

    async def run(self) -> None:
        """Keep a member in the group until `close` has finished or this is cancelled; survives outages.

        Raises StartError for security files that cannot be read at first.
        """
        self._ended.clear()
        started = False
        try:
            while not self._closing.is_set():
                try:
                    with at_work(started=started):
                        client = self.client(self.settings)
                    started = True
                    await self._take_part(client)
                except (kafka_errors.KafkaError, OSError) as error:
                    _LOG.warning("lost the consumer group", extra={"error": repr(error)})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RECONNECT_S):
                        await self._closing.wait()
        finally:
            self._ended.set()

    async def _take_part(self, client: Any) -> None:
        """Read by one member of the group. Raises KafkaError or OSError once it is none any more."""
        member = Member(
            self.settings,
            self.metrics,
            self.on_fenced,
            on_change=self._changed.set,
            client=client,
            look_up=self.look_up,
            read_by_hand=self.read_by_hand,
        )
        self._member = member
        try:
            with stray_cancellation_as_error():
                await member.run()
        finally:
            self._member = None
            member.fence()
            await self._stop(client)

    async def _stop(self, client: Any) -> None:
        """Leave the group within the time-out; disconnect in any case."""
        try:
            with stray_cancellation_as_error():
                async with asyncio.timeout(self._stop_timeout_s):
                    await client.stop()
        except Exception as error:  # noqa: BLE001 - what ended one of its tasks is raised again
            _LOG.warning("could not leave the consumer group", extra={"error": repr(error)})
            await abandon_consumer(client)

    async def fetch(self) -> Sequence[InFlightRecord]:
        """The next records, at least one, of partitions that are not paused; none only once fetching is stopped."""
        while self._fetching:
            member = self._member
            if member is not None and (in_flight_records := member.deliver(self._paused)):
                return in_flight_records
            full = self.holdings.full()  # what they have is handed out, and no more is fetched
            if member is None or not await member.read(self._paused | full, self.holdings.room_bytes):
                self._changed.clear()
                with contextlib.suppress(TimeoutError):  # commits free partitions that were over their span
                    async with asyncio.timeout(self.settings.client.commit_interval_s):
                        await self._changed.wait()
        return ()

    def pause(self, topics: frozenset[str]) -> None:
        self._paused = topics
        self._changed.set()

    def stop_fetching(self) -> None:
        """Hand out no further records; those in flight complete and are committed."""
        self._fetching = False
        self._changed.set()

    async def close(self, timeout_s: float) -> None:
        """Commit completed records, fence the rest, leave the group; within the time-out, even without a broker."""
        self.stop_fetching()
        self._stop_timeout_s = max(0.0, timeout_s / 2 - _STOP_S)
        self._closing.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if self._member is not None:
                    self._member.end(timeout_s / 2)
                await self._ended.wait()

    @property
    def healthy(self) -> bool:
        """Whether the group counts this member in, its coordinator answers, and every topic is there."""
        return self._member is not None and self._member.healthy

    def paused(self) -> frozenset[tuple[str, int]]:
        """The partitions that are paused, with their topic or above their commit span."""
        partitions = self.partitions.items()
        stopped = self._paused | self.holdings.full()
        return frozenset(tp for tp, partition in partitions if partition.over_span or tp.topic in stopped)

    @property
    def partitions(self) -> Mapping[Any, Partition]:
        """The assigned partitions (topic, number) whose positions are known."""
        return {} if self._member is None else self._member.partitions
