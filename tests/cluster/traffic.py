"""Load through Kafka and gRPC at once, with every answer held against what it must be."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from tokenbatch_client import requests

from loadtest.kit.traffic import paced
from loadtest.questions import bundled_questions
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.clients.snippets import read
from tests.cluster.values import DIMENSIONS
from tests.faults.checker import Checker
from tests.faults.expected import Oracle
from tests.faults.steady_load import SteadyLoad
from tests.faults.topic_logs import commits, end_offsets, ids_of, read_topics
from tests.faults.verdict import Timeline, Verdict, judge
from tests.support.kafka_client import committed
from tests.support.patience import patient
from tests.support.until import until

REQUESTS, REPLIES, LETTERS, GROUP = "embed.requests.v1", "embed.replies.v1", "embed.requests.v1-dlt", "tokenbatch"
_FOREVER = 10**9
_CALL_S = patient(20.0)
_PAGE = read().files
_SERVICE_CONFIG, _BALANCED = (_PAGE[f"channel/{name}.json"] for name in ("service_config", "balanced_service_config"))
CHANNEL = (("grpc.service_config", _SERVICE_CONFIG), ("grpc.enable_retries", 1))
"""Options of a channel whose calls are sent again where the page says so."""


@dataclass
class Calls:
    """gRPC callers at a fixed rate: `latency_s` by the time of the call, what went wrong, and which revisions answered.

    `balanced`: they call all addresses of the target in turn. Without `retries` each call is sent once.
    """

    target: str
    answered: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    errors: list[str] = field(default_factory=list[str])
    revisions: Counter[str] = field(default_factory=Counter[str])
    balanced: bool = False
    retries: bool = True
    _oracle: Oracle = field(default_factory=lambda: Oracle(DIMENSIONS))

    async def run(self, per_s: float) -> None:
        """Call until cancelled, then wait for the calls under way."""
        config = _BALANCED if self.balanced else _SERVICE_CONFIG
        options = [("grpc.service_config", config), ("grpc.enable_retries", int(self.retries))]
        async with grpc.aio.insecure_channel(self.target, options=options) as channel:
            stub: Any = pb_grpc.EmbeddingsStub(channel)
            await channel.channel_ready()
            under_way: set[asyncio.Task[None]] = set()
            try:
                async for numbers in paced(_FOREVER, per_s, 1):
                    task = asyncio.create_task(self._one(stub, numbers.start), name="call")
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            finally:
                await asyncio.gather(*under_way)

    async def _one(self, stub: Any, number: int) -> None:
        text = _QUESTIONS[number % len(_QUESTIONS)]
        at_s, began_s = time.time(), time.monotonic()
        try:
            answer = await stub.Embed(requests.embed([text], {}, f"call-{number}"), timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            self.errors.append(f"{error.code().name}: {error.details()}")
            return
        self.revisions[answer.model_revision] += 1
        if not self._oracle.agrees(text, answer.embeddings[0].embedding):
            self.errors.append(f"another vector than its text's: {text}")
        self.answered.append((at_s, time.monotonic() - began_s))


_QUESTIONS = bundled_questions()


@asynccontextmanager
async def checked(kafka: str, address: str = "", *, calls_may_fail: bool = False) -> AsyncGenerator[Traffic]:
    """Traffic to send inside; at the end every record is held against what must become of it."""
    traffic = Traffic(kafka, Calls(address))
    await traffic.open()
    yield traffic
    verdict = await traffic.verdict()
    assert verdict.problems == ()
    assert verdict.sent > 0
    assert calls_may_fail or traffic.calls.errors == []


@dataclass
class Traffic:
    """What a scenario sends, and what came of it."""

    kafka: str
    calls: Calls
    load: SteadyLoad = field(init=False)

    async def open(self) -> None:
        self.load = SteadyLoad(self.kafka, REQUESTS)
        await self.load.start()

    @asynccontextmanager
    async def flowing(self, records_per_s: float, calls_per_s: float) -> AsyncGenerator[None]:
        tasks = [asyncio.create_task(self.load.run(records_per_s), name="records")]
        if calls_per_s:
            tasks.append(asyncio.create_task(self.calls.run(calls_per_s), name="calls"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def lag(self) -> int:
        ends = await end_offsets(self.kafka, REQUESTS)
        offsets = await committed(self.kafka, GROUP)
        return sum(max(0, end - offsets.get(place, 0)) for place, end in ends.items())

    async def drained(self, timeout_s: float = 180.0) -> None:
        """Wait until all that was sent is committed. Raises TimeoutError."""
        await self.load.flush()

        async def none_waits() -> bool:
            return not await self.lag()

        await until(none_waits, timeout_s, 0.5)

    async def verdict(self) -> Verdict:
        """What became of every record; the producer is disconnected."""
        await self.drained()
        await self.load.close()
        ids = await ids_of(self.kafka, REQUESTS)
        checker = Checker(self.load.intents, GROUP, ids, oracle=Oracle(DIMENSIONS))
        async for record in read_topics(self.kafka, REQUESTS):
            if record.key in self.load.intents:
                checker.take_input(record)
        async for record in read_topics(self.kafka, REPLIES):
            if record.key in self.load.intents:
                checker.take_reply(record)
        async for record in read_topics(self.kafka, LETTERS):
            checker.take_letter(record)
        unseen = self.load.acknowledged.keys() - checker.fates.keys()
        return judge(checker, await commits(self.kafka, GROUP), sorted(unseen), Timeline(), 0.0)
