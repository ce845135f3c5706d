"""What benchmarks run in: a Kafka with a backlog, model servers that answer at once, processes to measure."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tokenbatch_client import requests

from aggregator.tokenizers.tokenizer import Tokenizer
from loadtest.bench.processor import cpu_s
from loadtest.options import unique
from loadtest.questions import bundled_questions
from loadtest.stack.instant_modelserver import MODEL, tokenizer_folder
from loadtest.stack.kafka import QUICK_START, KafkaBroker
from loadtest.stack.part import Part, Program
from loadtest.stack.ports import free_ports
from loadtest.stack.service import Aggregator

PARTITIONS = 8
REQUESTS = "bench.requests"
_BATCH_BYTES = 1_000_000
"""A broker takes no batch of more than 1 MiB; 500 documents are some 600 kB."""
_PER_BATCH = 500
_WORDS = (80, 320)
"""Of a document, about 100 to 400 tokens; MiniLM takes 256 of them."""
_LOOK_S = 0.1
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """What `mixed` measures: shares of generations, and seconds of processor time of a turn."""

    parts: Sequence[str] = ("shares", "overhead", "p99")
    shares: Sequence[float] = (0.0, 0.1, 0.5, 0.9, 1.0)
    warm_up_s: float = 1.5
    seconds: float = 4.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What every benchmark gets: numbers of queries and repeats, tokens of a batch, and a folder for logs.

    `turn_share`: of the usual time of a turn.
    """

    folder: Path
    queries: int
    repeats: int
    token_budget: int
    mixed: MixedPlan = MixedPlan()
    turn_share: float = 1.0

    @property
    def profiles(self) -> Path:
        """Where a model server keeps what it measured, for the benchmarks of one run."""
        return self.folder / "profiles"


class InstantModelServers(Program):
    """One process with this many model servers that answer at once, or after `step_s` until they are hurried."""

    def __init__(self, plan: Plan, number: int, step_s: float) -> None:
        ports = free_ports(number)
        told = ["--port", *map(str, ports), "--token-budget", str(plan.token_budget), "--step-s", str(step_s)]
        log_file = plan.folder / "instant_modelserver.log"
        super().__init__("loadtest.stack.instant_modelserver", told, log_file, ports[-1])
        self.addresses = [f"localhost:{port}" for port in ports]

    def hurry(self) -> None:
        """From now on they answer at once."""
        os.kill(self.pid, signal.SIGUSR1)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a process was at one moment: its CPU time, all threads, and the replies it had written."""

    at_s: float
    cpu_s: float
    replies: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A Kafka at `bootstrap`."""

    plan: Plan
    bootstrap: str
    _runs: count[int]

    def fill(self, queries: int, topic: str = REQUESTS, *, partitions: int = PARTITIONS) -> None:
        """Create a request topic with this many unique queries."""
        asyncio.run(create_topics(self.bootstrap, [topic], partitions))
        asyncio.run(fill(self.bootstrap, texts(queries), topic, partitions))

    def replies_topic(self) -> str:
        """A new topic, and with it a new consumer group: what reads the requests starts at their beginning."""
        name = f"bench.replies.{next(self._runs)}"
        asyncio.run(create_topics(self.bootstrap, [name]))
        return name

    def instant_modelservers(self, number: int = 1, step_s: float = 0.0) -> InstantModelServers:
        """Servers that answer at once, or after `step_s`; not started yet."""
        return InstantModelServers(self.plan, number, step_s)

    def aggregator(
        self, servers: Sequence[str], replies: str, settings: Mapping[str, str] | None = None, topic: str = REQUESTS
    ) -> Aggregator:
        """One that reads a topic from its beginning, coalescing nothing; not started yet."""
        return Aggregator(
            self.plan.folder / "aggregator.log",
            kafka=self.bootstrap,
            model=MODEL,
            servers=servers,
            settings={
                "KAFKA__TOPICS": f'[{{"name": "{topic}"}}]',
                "KAFKA__REPLY_TOPIC": replies,
                "KAFKA__GROUP_ID": replies,
                "BATCHING__COALESCE": "false",
                **(settings or {}),
            },
        )

    def wait(
        self, part: Part, replies: str, queries: int, on_look: Callable[[Progress], None] = lambda _: None
    ) -> list[Progress]:
        """Look at a part now and then until it has written this many replies.

        Raises StackError when it ends before, TimeoutError when it takes too long.
        """
        looks: list[Progress] = []

        def look(progress: Progress) -> None:
            looks.append(progress)
            on_look(progress)

        try:
            asyncio.run(watch(self.bootstrap, replies, part.pid, queries, look))
        except BaseException:
            part.child.raise_if_ended(part.advice)
            raise
        return looks

    def run(self, part: Part, replies: str, queries: int) -> list[Progress]:
        """Start a part, wait for its replies, and stop it."""
        part.launch()
        try:
            return self.wait(part, replies, queries)
        finally:
            part.stop()

    def cpu_us(self, part: Part, replies: str, queries: int) -> float:
        """Its CPU time per query, in µs, while it works off a backlog."""
        return cpu_us_per_query(self.run(part, replies, queries), queries)


@contextmanager
def kafka(plan: Plan) -> Generator[Setting]:
    """Start a new Kafka; its data is gone afterwards, its log stays."""
    data = plan.folder / "kafka"
    shutil.rmtree(data, ignore_errors=True)
    try:
        jvm_options = () if plan.turn_share == 1.0 else QUICK_START
        with KafkaBroker(data, jvm_options=jvm_options, log_file=plan.folder / "kafka.log") as broker:
            yield Setting(plan, broker.bootstrap, count())
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def backlog(plan: Plan) -> Generator[Setting]:
    """The same with the plan's queries in its request topic."""
    with kafka(plan) as setting:
        setting.fill(plan.queries)
        yield setting


async def create_topics(bootstrap: str, names: Sequence[str], partitions: int = PARTITIONS) -> None:
    """Topics of this many partitions, on one broker."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        await admin.create_topics([NewTopic(name, partitions, 1) for name in names])
    finally:
        await admin.close()


def mean_tokens(inputs: Sequence[str]) -> float:
    """Tokens of one of them, by MiniLM's tokenizer."""
    return float(np.mean(Tokenizer(tokenizer_folder()).count(inputs).lengths))


def texts(queries: int) -> list[str]:
    """Real questions, no two the same."""
    questions = bundled_questions()
    return unique([questions[number % len(questions)] for number in range(queries)])


def documents(number: int, words_each: tuple[int, int] = _WORDS) -> list[str]:
    """Questions in a row, no two of them the same."""
    words = " ".join(bundled_questions()).split()
    least, most = words_each
    lengths = np.random.default_rng(0).integers(least, most, number)
    starts = np.random.default_rng(1).integers(0, len(words) - most, number)
    return unique([" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)])


async def fill(
    bootstrap: str,
    inputs: Sequence[str],
    topic: str = REQUESTS,
    partitions: int = PARTITIONS,
) -> None:
    """Put these queries into a topic."""
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=_BATCH_BYTES
    ) as producer:
        batch = producer.create_batch()
        flush = partial(producer.send_batch, topic=topic)
        for number, text in enumerate(inputs):
            message = requests.embed([text], {"truncate": "end"}, f"bench-{number}")
            batch.append(timestamp=None, key=str(number).encode(), value=message.SerializeToString())
            if batch.record_count() == _PER_BATCH or number == len(inputs) - 1:
                await flush(batch, partition=number // _PER_BATCH % partitions)
                batch = producer.create_batch()


async def watch(bootstrap: str, topic: str, pid: int, queries: int, on_look: Callable[[Progress], None]) -> None:
    """Look at a process now and then until it has written this many replies. Raises TimeoutError."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with asyncio.timeout(_TIMEOUT_S), AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign(partitions)
        replies = 0
        while replies < queries:
            used_s = cpu_s(pid)
            replies = sum((await consumer.end_offsets(partitions)).values())
            on_look(Progress(time.monotonic(), used_s, replies))
            await asyncio.sleep(_LOOK_S)


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
