"""The stack of a row about Redis: a server that keeps every write, model servers, aggregators and a steady load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from loadtest.clients.pace import paced
from loadtest.questions import bundled_questions
from loadtest.stack.redis import RedisServer
from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator, ModelServer
from tests.faults.expected import DIMENSIONS
from tests.faults.memory_watch import MemoryWatch
from tests.faults.redis_log import Ledger, commands
from tests.faults.verdict import Timeline, Verdict
from tests.support.kafka_client import query
from tests.support.processes import synthetic

REQUESTS, REPLIES, GROUP = "embed.requests.v1", "embed.replies.v1", "tokenbatch"
_FOREVER, _POLL_S, _GRACE_S = 10**9, 0.2, 60.0
_PATIENCE_S = 200.0
_QUESTIONS = bundled_questions()
_NO_REWRITE = {"auto-aof-rewrite-percentage": "0"}
"""The file then holds all that was ever written."""


@dataclass
class RedisStack:
    """What one row runs. `sent` has the text of each request id, `acknowledged` the ids of entries that Redis took."""

    folder: Path
    server: RedisServer = field(init=False)
    line: Timeline = field(default_factory=Timeline)
    aggregators: list[Aggregator] = field(default_factory=list[Aggregator])
    model_servers: list[ModelServer] = field(default_factory=list[ModelServer])
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    sent: dict[str, str] = field(default_factory=dict[str, str])
    acknowledged: set[bytes] = field(default_factory=set[bytes])

    def __post_init__(self) -> None:
        self.server = RedisServer(self.folder / "redis", settings=_NO_REWRITE)
        self.client: Any = Redis(port=self.server.port, retry=Retry(NoBackoff(), 0))

    async def add_model_server(self) -> ModelServer:
        """A further one, ready."""
        settings = {"SYNTHETIC__FIXED_S": "0.01", "SYNTHETIC__DIMENSIONS": str(DIMENSIONS)}
        server = synthetic(self.folder / f"modelserver-{len(self.model_servers)}.log", **settings)
        self.model_servers.append(server)
        await asyncio.to_thread(server.start)
        return server

    async def add_aggregator(self) -> Aggregator:
        """A further one of the group."""
        aggregator = Aggregator(
            self.folder / f"aggregator-{len(self.aggregators)}.log",
            kafka="localhost:1",
            model=DEFAULT_MODEL_NAME,
            servers=[server.address for server in self.model_servers],
            settings={
                "KAFKA__ENABLED": "false",
                "REDIS__ENABLED": "true",
                "REDIS__SERVERS": self.server.address,
                "REDIS__CLIENT": json.dumps({"takeover_idle_s": 3.0, "max_stream_length": 10_000_000}),
                "BATCHING__TOKEN_BUDGET": "250",
            },
        )
        self.aggregators.append(aggregator)
        await self.start(aggregator)
        return aggregator

    async def start(self, aggregator: Aggregator) -> None:
        """Start an aggregator, again or for the first time."""
        await asyncio.to_thread(aggregator.launch)
        self.memory.add(aggregator.pid)
        await asyncio.to_thread(aggregator.wait, _PATIENCE_S)

    async def close(self) -> None:
        """End everything at once."""
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
                request_id, text = f"q{number}", _QUESTIONS[number % len(_QUESTIONS)]
                self.sent[request_id] = text
                pipeline.xadd(REQUESTS, {"value": query(text, request_id).value})
            with contextlib.suppress(RedisError, OSError):  # they may be in the stream, or not
                results = await asyncio.shield(pipeline.execute(raise_on_error=False))
                self.acknowledged |= {each for each in results if isinstance(each, bytes)}

    async def answers(self, count: int, timeout_s: float = _PATIENCE_S) -> None:
        """Wait until `count` more replies are written."""
        async with asyncio.timeout(timeout_s):
            wanted = await self._written() + count
            while await self._written() < wanted:  # noqa: ASYNC110 - a stream calls nobody
                await asyncio.sleep(_POLL_S)

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
        ledger = Ledger(REQUESTS, REPLIES, GROUP, self.sent)
        for command in commands(self.server.folder):
            ledger.take(command)
        unseen = self.acknowledged - ledger.fates.keys()
        problems = [f"an aggregator ended with exit code {code}" for code in codes if code]
        problems += ["not all that was sent was ever acknowledged"] if left else []
        problems += [f"lost: {ledger.lost[:5]}"] if ledger.lost else []
        problems += [f"Redis took them, and its log has them not: {sorted(unseen)[:5]}"] if unseen else []
        problems += [f"wrong: {ledger.wrong[:5]}"] if ledger.wrong else []
        problems += [f"{ledger.early} entries were acknowledged before their reply"] if ledger.early else []
        return self._judge(ledger, len(unseen), problems)

    def _judge(self, ledger: Ledger, unseen: int, problems: list[str]) -> Verdict:
        fates = list(ledger.fates.values())
        healed_ms = self.line.healed_ms
        first_ms = min((fate.replied_ms for fate in fates if fate.sent_ms >= healed_ms and fate.replies), default=0)
        recovery_s = max(0.0, (first_ms - healed_ms) / 1000)
        after_ms = healed_ms + recovery_s * 1000
        times = sorted(ledger.reply_times_ms)

        def p99_s(begins_ms: float, ends_ms: float) -> float:
            waits = sorted(
                fate.replied_ms - fate.sent_ms for fate in fates if fate.replies and begins_ms < fate.sent_ms <= ends_ms
            )
            return waits[int(0.99 * (len(waits) - 1))] / 1000 if waits else 0.0

        return Verdict(
            sent=len(fates) + unseen,
            answered=sum(fate.replies > 0 for fate in fates),
            dead_lettered=sum(fate.letters > 0 for fate in fates),
            lost=len(ledger.lost) + unseen,
            wrong=len(ledger.wrong),
            duplicates=sum(max(0, fate.replies - 1) for fate in fates),
            twins_alike=True,
            early_commits=ledger.early,
            regression=0,
            recovery_s=recovery_s,
            gap_s=max((late - early for early, late in pairwise(times)), default=0) / 1000,
            p99_during_s=p99_s(self.line.fault_ms, after_ms),
            p99_after_s=p99_s(after_ms, float("inf")),
            peak_mib=self.memory.peak_mib,
            problems=tuple(problems),
        )


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[RedisStack]:
    """A stack with its Redis up; its processes and connections end with the block, even after an error."""
    stack = RedisStack(folder)
    try:
        await asyncio.to_thread(stack.server.start)
        yield stack
    finally:
        await stack.close()
