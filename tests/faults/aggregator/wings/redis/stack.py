"""The stack of a row about Redis: a server that keeps every write, model servers, aggregators and a steady load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from loadtest.kit.traffic import paced
from loadtest.stack.redis import RedisServer
from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator, ModelServer
from tests.faults.aggregator.wings.redis.log import Ledger, commands
from tests.faults.expected import DIMENSIONS
from tests.faults.memory_watch import MemoryWatch
from tests.faults.steady_load import Intent, question
from tests.faults.verdict import Timeline, Verdict, judge
from tests.support.processes import synthetic
from tests.support.until import until

REQUESTS, REPLIES, GROUP = "embed.requests.v1", "embed.replies.v1", "tokenbatch"
_FOREVER, _POLL_S, _GRACE_S = 10**9, 0.2, 60.0
_PATIENCE_S = 200.0
_NO_REWRITE = {"auto-aof-rewrite-percentage": "0"}
"""The file then holds all that was ever written."""


@dataclass
class RedisStack:
    """What one row runs. `intents`: what is to become of each request; `acknowledged`: the entries that Redis took."""

    folder: Path
    server: RedisServer = field(init=False)
    line: Timeline = field(default_factory=Timeline)
    aggregators: list[Aggregator] = field(default_factory=list[Aggregator])
    model_servers: list[ModelServer] = field(default_factory=list[ModelServer])
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    intents: dict[bytes, Intent] = field(default_factory=dict[bytes, Intent])
    acknowledged: set[bytes] = field(default_factory=set[bytes])

    def __post_init__(self) -> None:
        self.server = RedisServer(self.folder / "redis", settings=_NO_REWRITE)
        self.client: Any = Redis(port=self.server.port, retry=Retry(NoBackoff(), 0))

    async def add_model_server(self) -> ModelServer:
        settings = {"SYNTHETIC__FIXED_S": "0.01", "SYNTHETIC__DIMENSIONS": str(DIMENSIONS)}
        server = synthetic(self.folder / f"modelserver-{len(self.model_servers)}.log", **settings)
        self.model_servers.append(server)
        await asyncio.to_thread(server.start)
        return server

    async def add_aggregator(self) -> Aggregator:
        aggregator = Aggregator(
            self.folder / f"aggregator-{len(self.aggregators)}.log",
            kafka="localhost:1",
            model=DEFAULT_MODEL_NAME,
            servers=[server.address for server in self.model_servers],
            settings={
                "KAFKA__ENABLED": "false",
                "REDIS__ENABLED": "true",
                "REDIS__SERVERS": self.server.address,
                "REDIS__CLIENT": json.dumps({"max_stream_length": 10_000_000}),
                "CONSTANTS": '{"aggregator.wings.redis.settings:RedisClientSettings.takeover_idle_s": 3.0}',
                "BATCHING__TOKEN_BUDGET": "250",
            },
        )
        self.aggregators.append(aggregator)
        await self.start(aggregator)
        return aggregator

    async def start(self, aggregator: Aggregator) -> None:
        await asyncio.to_thread(aggregator.launch)
        self.memory.add(aggregator.pid)
        await asyncio.to_thread(aggregator.wait, _PATIENCE_S)

    async def close(self) -> None:
        self.memory.stop()
        for part in (*self.aggregators, *self.model_servers, self.server):
            await asyncio.to_thread(part.kill)
        await self.client.aclose()

    @asynccontextmanager
    async def under_load(self, rate: float = 300.0) -> AsyncGenerator[None]:
        """Under a steady load that has begun to be answered."""
        sending = asyncio.create_task(self._send(rate), name="steady load")
        try:
            await self.answers(int(rate))
            yield
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending

    async def _send(self, rate: float) -> None:
        async for numbers in paced(_FOREVER, rate, 100):
            pipeline = self.client.pipeline(transaction=False)
            for number in numbers:
                planned = question(number, f"q{number}")
                self.intents[b"q%d" % number] = planned.intent
                pipeline.xadd(REQUESTS, {"value": planned.sent.value})
            with contextlib.suppress(RedisError, OSError):  # they may be in the stream, or not
                results = await asyncio.shield(pipeline.execute(raise_on_error=False))
                self.acknowledged |= {each for each in results if isinstance(each, bytes)}

    async def answers(self, count: int, timeout_s: float = _PATIENCE_S) -> None:
        wanted = await self._written() + count

        async def written() -> bool:
            return await self._written() >= wanted

        await until(written, timeout_s, _POLL_S)

    async def _written(self) -> int:
        while True:
            with contextlib.suppress(RedisError, OSError):
                if not await self.client.exists(REPLIES):
                    return 0
                return int((await self.client.xinfo_stream(REPLIES))["entries-added"])
            await asyncio.sleep(_POLL_S)

    async def verdict(self, timeout_s: float = _PATIENCE_S) -> Verdict:
        """Let all be finished, stop the aggregators and Redis, and check Redis's own log of all that was written."""
        deadline_s = time.monotonic() + timeout_s
        while (left := await self.client.xlen(REQUESTS)) and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        codes = [await asyncio.to_thread(each.stop, _GRACE_S) for each in self.aggregators]
        await asyncio.to_thread(self.server.stop)
        ledger = Ledger(self.intents, GROUP, stream=REQUESTS, replies=REPLIES)
        for command in commands(self.server.folder):
            ledger.take(command)
        unseen = self.acknowledged - ledger.fates.keys()
        found = judge(ledger, [], sorted(unseen), self.line, self.memory.peak_mib)
        complaints = [f"an aggregator ended with exit code {code}" for code in codes if code]
        complaints += ["not all that was sent was ever acknowledged"] if left else []
        return found.with_more(*complaints)


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[RedisStack]:
    """A stack with its Redis up; its processes and connections end with the block, even after an error."""
    stack = RedisStack(folder)
    try:
        await asyncio.to_thread(stack.server.start)
        yield stack
    finally:
        await stack.close()
