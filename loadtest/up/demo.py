"""A minute to watch on the live page: a day's load, a burst, a slow model server, and one that is killed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.table import Column, Table
from tokenbatch_client import AsyncClient, TokenbatchError

from loadtest.kit import kafka
from loadtest.kit.grpc import GrpcRun, connected
from loadtest.kit.kafka import KafkaRun
from loadtest.kit.tally import Tally
from loadtest.questions import bundled_questions, different
from loadtest.screen import duration
from loadtest.stack.addresses import Addresses
from loadtest.stack.service import ModelServer

DEMO_SERVERS: dict[str, Any] = {
    "servers": 3,
    "settings": {
        "ENGINE__KIND": "synthetic",
        "SYNTHETIC__FIXED_S": "0.05",
        "SYNTHETIC__PER_TOKEN_S": "0.0004",
    },
}
"""Long steps, so that one sees each, and a load that leaves the processor to the browser."""
DAY_S = 60.0
_DAY = (0.0, 14.0, 50.0, 60.0), (40.0, 250.0, 250.0, 20.0)
"""Queries per second at these seconds of `DAY_S`, and in between on a straight line."""
_MOST_PER_CALL = 8
_BURST = 3000
_SLOW_S, _QUICK_S = 0.15, 0.05
"""A server that stands still for three quarters of the time takes four times as long."""
_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Outcome:
    """The outcome of the questions of one part of the minute; `lost`: without a vector."""

    name: str
    asked: int = 0
    lost: int = 0
    latencies_s: list[float] = field(default_factory=list[float])


class Demo:
    """The minute; `show` prints what happens next."""

    def __init__(
        self,
        servers: Sequence[ModelServer],
        addresses: Addresses,
        client: Mapping[str, Any],
        show: Callable[[str], None],
        day_s: float = DAY_S,
    ) -> None:
        """`client` goes to the Kafka client as it is. `day_s`: how long all of it takes."""
        self._servers = servers
        self._addresses = addresses
        self._client = client
        self._show = show
        self._scale = day_s / DAY_S
        self._outcomes: list[Outcome] = []
        self._ended = threading.Event()
        self._started_s = 0.0

    def run(self) -> list[Outcome]:
        """Run it all; the outcomes in their order, and last that of the burst."""
        slow, killed = self._servers[1], self._servers[2]
        self._show(f"\nA day of load. Watch it at {self._addresses.page}")
        self._started_s = time.monotonic()
        with ThreadPoolExecutor() as beside:
            self._part(0, "Morning", "the load rises: batches fill before there are more of them")
            load = beside.submit(lambda: asyncio.run(self._load()))
            try:
                self._part(
                    16, "A burst", f"{self._burst_size:,} questions at once through Kafka: they wait, calls do not"
                )
                burst = beside.submit(self._burst)
                self._part(28, "A slow server", f"{slow.address} becomes four times slower: it gets less")
                with _slowed(slow, beside):
                    self._until(38)
                self._part(40, "A lost server", f"{killed.address} is killed: its batch is sent again elsewhere")
                killed.kill()
                self._until(47)
                self._part(48, "It returns", f"{killed.address} starts again, and is used once it answers well")
                killed.start(_TIMEOUT_S)
                self._part(54, "Evening", "the load falls")
                self._until(60)
            finally:
                self._ended.set()
            load.result()
            return [*self._outcomes, burst.result()]

    def _part(self, at_s: float, name: str, what: str) -> None:
        self._until(at_s)
        self._outcomes.append(Outcome(name))
        self._show(f"[{time.monotonic() - self._started_s:4.0f} s] {name}: {what}")

    def _until(self, at_s: float) -> None:
        time.sleep(max(0.0, self._started_s + at_s * self._scale - time.monotonic()))

    @property
    def _burst_size(self) -> int:
        return int(_BURST * self._scale)

    def _burst(self) -> Outcome:
        texts = different(bundled_questions(), self._burst_size)
        tally = Tally(np.arange(len(texts)), keep_embeddings=False)
        asyncio.run(kafka.run(texts, tally, KafkaRun(self._addresses.kafka, client=self._client), lambda: None))
        summary = tally.summary()
        failed = sum(summary.errors.values())
        return Outcome("The burst", summary.sent, summary.lost + failed, tally.latencies_s.tolist())

    async def _load(self) -> None:
        """Call at the rate of the time of day, whether or not earlier calls are answered."""
        questions = bundled_questions()
        async with connected(GrpcRun(self._addresses.grpc)) as client, asyncio.TaskGroup() as calls:
            while not self._ended.is_set():
                texts = random.sample(questions, random.randint(1, _MOST_PER_CALL))
                calls.create_task(self._call(client, texts, self._outcomes[-1]))
                rate = float(np.interp((time.monotonic() - self._started_s) / self._scale, *_DAY))
                await asyncio.sleep(random.expovariate(rate / len(texts)))

    async def _call(self, client: AsyncClient, texts: Sequence[str], outcome: Outcome) -> None:
        outcome.asked += len(texts)
        sent_s = time.monotonic()
        try:
            answer = await client.embed(texts, errors="return", timeout_s=_TIMEOUT_S)
        except TokenbatchError:
            outcome.lost += len(texts)
            return
        outcome.lost += sum(row.error is not None for row in answer.rows)
        outcome.latencies_s.append(time.monotonic() - sent_s)


@contextmanager
def _slowed(server: ModelServer, beside: ThreadPoolExecutor) -> Generator[None]:
    """Let a server stand still most of the time."""
    ended = threading.Event()

    def slow() -> None:
        while not ended.is_set():
            server.pause()
            ended.wait(_SLOW_S)
            server.resume()
            ended.wait(_QUICK_S)

    slowing: Future[None] = beside.submit(slow)
    try:
        yield
    finally:
        ended.set()
        slowing.result()


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """One row for each part, and the sum."""
    titles = ("questions", "lost", "latency p50", "latency p99")
    table = Table("", *(Column(title, justify="right") for title in titles))
    for outcome in outcomes:
        p50, p99 = np.percentile(outcome.latencies_s, (50, 99)).tolist() if outcome.latencies_s else (None, None)
        table.add_row(outcome.name, f"{outcome.asked:,}", f"{outcome.lost:,}", duration(p50), duration(p99))
    table.add_section()
    lost = sum(outcome.lost for outcome in outcomes)
    table.add_row("all", f"{sum(outcome.asked for outcome in outcomes):,}", f"{lost:,}", "", "")
    return table
