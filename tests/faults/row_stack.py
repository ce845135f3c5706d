"""What a row runs: topics, model servers, aggregators, a steady load, and at the end the checker."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator, ModelServer
from tests.faults.broken_code import Build
from tests.faults.checker import Checker, examples
from tests.faults.expected import DIMENSIONS
from tests.faults.memory_watch import MemoryWatch
from tests.faults.replays import Replays, replays
from tests.faults.rows import Figures
from tests.faults.steady_load import Maker, SteadyLoad, question
from tests.faults.topic_logs import commits, end_offsets, ids_of, read_topics
from tests.faults.verdict import Timeline, Verdict, judge
from tests.support.kafka_client import Topics, committed, connected_admin, make_topics
from tests.support.processes import synthetic
from tests.support.until import until

DATED = {"message.timestamp.type": "LogAppendTime"}
PATIENCE_S = 200.0
"""Of waits that only a defect makes long."""
_POLL_S = 0.5
_GRACE_S = 60.0
_SETTINGS = {
    "KAFKA__CLIENT__SESSION_TIMEOUT_S": "6",  # the least that brokers take
    "KAFKA__CREATE_TOPICS": "false",
    "BATCHING__TOKEN_BUDGET": "250",
}


class Variant(Aggregator):
    """An aggregator started by another module than its own, from broken code, or with more in its environment."""

    def start_as(self, module: str, environment: Mapping[str, str]) -> None:
        self._module = module
        self._environment = {**self._environment, **environment}


@dataclass
class RowStack:
    """What one row runs.

    `kafka` is the bootstrap address for everybody; `beside` what aggregators use instead. `further_replies` are topics
    with replies in them too, `kept_requests` and `kept_replies` records that the row deletes from theirs.
    """

    folder: Path
    kafka: str
    partitions: int = 4
    replication: int = 1
    beside: str = ""
    further_replies: tuple[str, ...] = ()
    kept_requests: list[Any] = field(default_factory=list[Any])
    kept_replies: list[Any] = field(default_factory=list[Any])
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    topics: Topics = field(default_factory=lambda: _topics(secrets.token_hex(4)))
    line: Timeline = field(default_factory=Timeline)
    aggregators: list[Variant] = field(default_factory=list[Variant])
    servers: list[ModelServer] = field(default_factory=list[ModelServer])
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    kills_ms: list[float] = field(default_factory=list[float])
    replays: Replays = field(default_factory=Replays)
    load: SteadyLoad = field(init=False)

    def __post_init__(self) -> None:
        self.load = SteadyLoad(self.kafka, self.topics.requests)

    async def open(self) -> None:
        """Create the topics, whose records carry the broker's time, and connect the producer."""
        await self.create(self.topics.requests, self.topics.replies, self.topics.dead_letters)
        await self.load.start()

    async def create(self, *names: str) -> None:
        await make_topics(self.kafka, *names, partitions=self.partitions, replication=self.replication, configs=DATED)

    async def close(self) -> None:
        self.memory.stop()
        await self.load.close()
        for part in (*self.aggregators, *self.servers):
            await asyncio.to_thread(part.kill)

    async def server(self, **settings: str) -> ModelServer:
        all_settings = {"SYNTHETIC__FIXED_S": "0.01", "SYNTHETIC__DIMENSIONS": str(DIMENSIONS), **settings}
        server = synthetic(self.folder / f"modelserver-{len(self.servers)}.log", **all_settings)
        self.servers.append(server)
        await asyncio.to_thread(server.start)
        return server

    async def aggregator(
        self,
        *servers: str,
        settings: Mapping[str, str] | None = None,
        module: str = "aggregator",
        environment: Mapping[str, str] | None = None,
        build: Build | None = None,
        ready: bool = True,
    ) -> Variant:
        """A further aggregator of the group, in front of these addresses, or of all model servers of the stack.

        `build`: a broken one.
        """
        aggregator = Variant(
            self.folder / f"aggregator-{len(self.aggregators)}.log",
            kafka=self.beside or self.kafka,
            model=DEFAULT_MODEL_NAME,
            servers=servers or [server.address for server in self.servers],
            settings={
                "KAFKA__TOPICS": f'[{{"name": "{self.topics.requests}"}}]',
                "KAFKA__REPLY_TOPIC": self.topics.replies,
                "KAFKA__GROUP_ID": self.topics.requests,
                **_SETTINGS,
                **self.settings,
                **(settings or {}),
            },
        )
        broken = build.environment(self.folder / build.name) if build else {}
        aggregator.start_as(module, {**broken, **(environment or {})})
        self.aggregators.append(aggregator)
        await self.start(aggregator, ready=ready)
        return aggregator

    async def start(self, aggregator: Variant, *, ready: bool = True) -> None:
        await asyncio.to_thread(aggregator.launch)
        self.memory.add(aggregator.pid)
        if ready:
            await asyncio.to_thread(aggregator.wait, PATIENCE_S)

    async def kill_and_start(self, aggregator: Variant) -> None:
        """SIGKILL to one that serves, and another life of it."""
        self.kill(aggregator)
        await self.start(aggregator)

    def kill(self, aggregator: Variant) -> None:
        self.kills_ms.append(time.time() * 1000)
        aggregator.kill()

    @asynccontextmanager
    async def under_load(self, rate: float = 300.0, make: Maker = question) -> AsyncGenerator[None]:
        """Under a steady load that has begun to be answered."""
        sending = asyncio.create_task(self.load.run(rate, make), name="steady load")
        try:
            await self.answers(rate)
            yield
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending

    @asynccontextmanager
    async def fault_under_load(
        self, rate: float = 300.0, make: Maker = question, *, then: int = 1500
    ) -> AsyncGenerator[None]:
        """A fault under load, after which so many `then` are answered."""
        async with self.under_load(rate, make):
            async with self.fault():
                yield
            await self.answers(then)

    @asynccontextmanager
    async def fault(self) -> AsyncGenerator[None]:
        """The time from when something is broken until it is mended."""
        self.line.fault_ms = time.time() * 1000
        yield
        self.line.healed_ms = time.time() * 1000

    async def configure(self, topic: str, **configs: str) -> None:
        """Give a topic these settings and no others, such as max_message_bytes="100"."""
        changed = {name.replace("_", "."): value for name, value in configs.items()}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={**DATED, **changed})
        async with connected_admin(self.kafka) as admin:
            (response,) = await admin.alter_configs([resource])
        assert response.resources[0][0] == 0, response

    async def answers(self, count: float, timeout_s: float = PATIENCE_S) -> None:
        """Wait until `count` more replies are written. Raises TimeoutError, with the end of every aggregator's log."""
        try:
            wanted = await self._written() + count

            async def written() -> bool:
                return await self._written() >= wanted

            await until(written, timeout_s, _POLL_S)
        except TimeoutError:
            ends = [f"aggregator, exit code {each.exit_code}. {each.child.log.tail()}" for each in self.aggregators]
            missing = f"{count:g} more replies were not written within {timeout_s:g} s"
            raise TimeoutError("\n".join([missing, *ends])) from None

    async def _written(self) -> int:
        while True:
            with contextlib.suppress(KafkaError, StopIteration):
                return sum((await end_offsets(self.kafka, self.topics.replies)).values())
            await asyncio.sleep(_POLL_S)

    async def drained(self, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until all that was sent is committed; whether that came to pass."""
        await self.load.flush()
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            ends = await end_offsets(self.kafka, self.topics.requests)
            offsets = await committed(self.kafka, self.topics.requests)
            if all(offsets.get(partition, 0) >= end for partition, end in ends.items()):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def stop(self, *aggregators: Variant) -> list[int | None]:
        """SIGTERM to these, or all that run; their exit codes."""
        chosen = aggregators or [each for each in self.aggregators if each.exit_code is None]
        return [await asyncio.to_thread(each.stop, _GRACE_S) for each in chosen]

    async def passes(
        self, figures: Figures, timeout_s: float = PATIENCE_S, *, without: Sequence[bytes] = (), **more: Any
    ) -> Verdict:
        """The verdict, which must name no problem; with `more` it is the row's figures. `without`: deleted records."""
        verdict = figures.take(await self.verdict(timeout_s, deleted=without), **more)
        if self.kills_ms:
            figures.more |= {"known": self.replays.known, "changed": self.replays.changed}
        assert verdict.problems == ()
        return verdict

    async def verdict(self, timeout_s: float = PATIENCE_S, *, deleted: Sequence[bytes] = ()) -> Verdict:
        """Let all be finished, stop the aggregators, and check every topic from its beginning.

        `deleted`: keys of records that the row took out of the requests topic itself, or made unreadable for a while;
        nobody may have answered them.
        """
        drained = await self.drained(timeout_s)
        codes = await self.stop()
        ids = await ids_of(self.kafka, self.topics.requests)
        checker = Checker(self.load.intents, self.topics.requests, ids)
        for record in self.kept_requests:
            checker.take_input(record)
        async for record in read_topics(self.kafka, self.topics.requests):
            if record.key not in deleted:
                checker.take_input(record)
        for record in self.kept_replies:
            checker.take_reply(record)
        async for record in read_topics(self.kafka, self.topics.replies, *self.further_replies):
            checker.take_reply(record)
        async for record in read_topics(self.kafka, self.topics.dead_letters):
            checker.take_letter(record)
        unseen = self.load.acknowledged.keys() - checker.fates.keys() - set(deleted)
        history = await commits(self.kafka, self.topics.requests)
        found = judge(checker, history, sorted(unseen), self.line, self.memory.peak_mib)
        self.replays = replays(checker.fates, history, self.kills_ms, DEFAULT_MODEL_NAME)
        complaints = [] if drained else ["not all that was sent was ever committed"]
        complaints += [f"an aggregator ended with exit code {code}" for code in codes if code]
        if self.replays.broken:
            complaints.append(f"replays: {examples(self.replays.broken)}")
        return found.with_more(*complaints)


def _topics(name: str) -> Topics:
    return Topics(f"{name}.requests", f"{name}.replies")


@asynccontextmanager
async def opened(stack: RowStack) -> AsyncGenerator[RowStack]:
    """The stack while it is open; its processes and connections end with the block, even after an error."""
    try:
        await stack.open()
        yield stack
    finally:
        await stack.close()
