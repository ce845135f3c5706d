"""Aggregators' Kafka sides in a group of their own, real from the fetch to the commit, and what must hold of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition

from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.request.request import Failure, Request
from aggregator.settings.aggregator import ClientSettings, KafkaSettings, TopicSettings
from aggregator.sources.kafka.decode import record_of
from aggregator.sources.kafka.source import KafkaSource
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.fake_kafka import SESSION_S, Commit, FakeKafka, FakeMember, FakeProducer, Words
from tests.support.fake_source import reply_all
from tests.support.virtual_time import AutojumpLoop

SPAN, POLL, GAP = 8, 3, 2
TPS = (TopicPartition("in", 0), TopicPartition("in", 1))
CLIENT = ClientSettings().model_copy(update={"max_commit_span": SPAN, "max_poll_records": POLL, "drain_timeout_s": 2.0})
SETTINGS = KafkaSettings(topics=(TopicSettings(name="in"),), reply_topic="out", client=CLIENT)
TEXT = (("content-type", b"text/plain"),)
_METRICS = Metrics(MetricsBuffer())
_TRACING = Tracing()
_TICKS = 10


class Process:
    """One aggregator's Kafka side. `taken` are the requests that the pipeline has under way."""

    def __init__(self, simulation: GroupSimulation, name: str) -> None:
        settings = SETTINGS.model_copy(update={"client": CLIENT.model_copy(update={"client_id": name})})
        self.name = name
        self.taken: list[Request] = []
        self.consumer = simulation.kafka.consumer(settings, member=simulation.member_type)
        self.producer = FakeProducer(simulation.kafka)
        self.path = KafkaSource(
            settings,
            "m",
            self.consumer,
            self.producer,
            metrics=_METRICS,
            tracing=_TRACING,
            clock=simulation.loop.time,
            wall_clock=simulation.loop.time,
        )
        self._loop = simulation.loop
        self._tasks: list[asyncio.Task[Any]] = [
            simulation.loop.create_task(self.consumer.run()),
            simulation.loop.create_task(self._take()),
        ]

    def complete(self, requests: Sequence[Request], failure: Failure) -> None:
        """Give requests their outcome; ones that were given back meanwhile, too, as a slow model server would."""
        for request in requests:
            self.taken.remove(request)
            request.fail(failure)
        self._tasks.append(self._loop.create_task(reply_all(self.path, requests)))

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.producer.close(0)

    async def shut_down(self) -> None:
        """Take no more, commit, leave."""
        await self.consumer.close(5.0)
        await self.kill()

    async def _take(self) -> None:
        while requests := await self.path.receive():
            self.taken.extend(requests)


class GroupSimulation:
    """Logs, a group, a broker and processes. `violations` are the promises that were broken, in words."""

    def __init__(self) -> None:
        self.loop = AutojumpLoop()
        self.loop.set_exception_handler(self._broke)
        self.kafka = FakeKafka("out", "in-dlt")
        self.kafka.create_topic("in", len(TPS))
        self.processes: list[Process] = []
        self.members: list[FakeMember] = []
        self.violations: list[str] = []
        self.rewound = 0
        self._bad: set[bytes] = set()
        self._producers: dict[str, FakeProducer] = {}
        self._names = 0
        simulation = self

        class Watched(FakeMember):
            """Tells the simulation what it commits."""

            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                simulation.members.append(self)

            async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
                simulation.check_sent(self, {tp: offset for tp, (offset, _) in offsets.items()})
                await super().commit(offsets)

            def judged(self, commit: Commit) -> Words:
                before = dict(simulation.kafka.committed)
                words = super().judged(commit)
                simulation.check_taken(before)
                return words

        self.member_type = Watched

    def run(self, seconds: float = 0.0) -> None:
        """Let everything happen that can, then so much time pass."""
        self.loop.run_until_complete(self._pass(seconds))

    def start(self) -> None:
        self._names += 1
        process = Process(self, f"p{self._names}")
        self.processes.append(process)
        self._producers[process.name] = process.producer

    def kill(self, process: Process) -> None:
        self.processes.remove(process)
        for member in self._members_of(process):
            member.die()
            self.loop.call_later(SESSION_S, self.kafka.leave, member)
        self.loop.run_until_complete(process.kill())

    def shut_down(self, process: Process) -> None:
        """One ends as it should."""
        self.processes.remove(process)
        self.loop.create_task(process.shut_down())

    def put_out(self, member: FakeMember, notices_s: float) -> None:
        """The group goes on without a member, which notices after a while."""
        self.loop.call_soon(self.kafka.leave, member)
        self.loop.call_later(notices_s, member.rejoin)

    def append(self, tp: TopicPartition, *, good: bool, gap: int) -> None:
        log = self.kafka.logs[tp]
        key = f"{tp.partition}:{log.end + gap}".encode()  # tells where it stands
        log.append(key, b"text" if good else b"\xff", TEXT, gap=gap)
        if not good:
            self._bad.add(key)

    def check_sent(self, member: FakeMember, offsets: Mapping[TopicPartition, int]) -> None:
        """No process may ask for a position with something before it that it was not told is kept."""
        told = self._producers[member.owner].acknowledged
        for tp, offset in offsets.items():
            for key in self._keys(tp, member.starts.get(tp, 0), offset):
                if not {("out", key), ("in-dlt", key)} & told:
                    self.violations.append(f"{member.owner} commits {tp.partition}@{offset} past unfinished {key!r}")

    def check_taken(self, before: Mapping[TopicPartition, int]) -> None:
        """What the group takes never goes back, and everything before it is answered or kept by somebody."""
        for tp, offset in self.kafka.committed.items():
            if offset < before.get(tp, 0):
                self.rewound += 1  # a replay, which loses nothing
            for key in self._keys(tp, before.get(tp, 0), offset):
                answered = ("out", key) in self.kafka.written and key not in self._bad
                if not answered and ("in-dlt", key) not in self.kafka.written:
                    self.violations.append(f"{key!r} is lost: {tp.partition}@{offset} was committed")

    def check_spans(self) -> None:
        """No partition is read further than its cap and one fetch."""
        for process in self.processes:
            for tp, partition in process.consumer.partitions.items():
                span = partition.committed_offset.span
                if span > (SPAN + POLL) * (1 + GAP):  # in offsets, those without a record as well
                    self.violations.append(f"{process.name} has a span of {span} in {tp}")
            if len(process.taken) > len(TPS) * (SPAN + POLL) + len(self.abandoned(process)):
                self.violations.append(f"{process.name} has {len(process.taken)} requests under way")

    def abandoned(self, process: Process) -> list[Request]:
        return [request for request in process.taken if record_of(request).committed_offset.fenced]

    def recover(self, failure: Failure) -> None:
        """Heal everything: in the end all must be committed."""
        self.kafka.held = self.kafka.flights_held = False
        self.kafka.poll_delay_s = 0.0
        if not self.processes:
            self.start()
        for _ in range(100):
            for commit in tuple(self.kafka.sent):
                self.kafka.answer(commit)
            for flight in tuple(self.kafka.under_way):
                self.kafka.acknowledge(flight)
            for process in self.processes:
                process.path.pause(lambda _model, _task: False, lambda _model, _priority: False)
                if process.taken:
                    process.complete(tuple(process.taken), failure)
            self.run(2.0)
            if not self.behind() or self.violations:
                return
        self.violations.append(f"never committed: {self.behind()}")

    def behind(self) -> list[TopicPartition]:
        logs = {tp: self.kafka.logs[tp] for tp in TPS}
        return [tp for tp, log in logs.items() if log.records and self.kafka.committed.get(tp, 0) != log.end]

    def close(self) -> None:
        for process in tuple(self.processes):
            self.kill(process)
        self.run(10.0)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run()
        self.loop.close()

    async def _pass(self, seconds: float) -> None:
        for _ in range(_TICKS):
            await asyncio.sleep(0)
        if seconds:
            await asyncio.sleep(seconds)

    def _members_of(self, process: Process) -> list[FakeMember]:
        return [member for member in self.members if member.owner == process.name]

    def _keys(self, tp: TopicPartition, start: int, end: int) -> list[bytes]:
        return [record.key or b"" for record in self.kafka.logs[tp].records if start <= record.offset < end]

    def _broke(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        self.violations.append(f"{context['message']}: {context.get('exception')!r}")
