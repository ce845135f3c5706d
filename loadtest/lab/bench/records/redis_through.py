"""P11: questions from Redis to Redis, beside Kafka to Kafka, and beside a list that the model server pulls from."""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from aggregator.tokenizers.tokenizer import Tokenizer
from loadtest.clients.kafka_connection import connected
from loadtest.clients.messages import NO_WISHES, request
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.programs import list_puller
from loadtest.lab.bench.records.kafka_through import rate
from loadtest.lab.bench.setting import Plan, Progress, Setting, backlog, texts
from loadtest.lab.bench.sides import dtype_of
from loadtest.lab.bench.turns import Medians, in_turns
from loadtest.lab.processor import cpu_s
from loadtest.stack.errors import StackError
from loadtest.stack.instant_modelserver import MODEL, tokenizer_folder
from loadtest.stack.part import Part, Program
from loadtest.stack.redis import RedisServer
from loadtest.stack.service import Aggregator, ModelServer

NAME = "P11"
_ONE_BY_ONE = 150
_LOOK_S, _TIMEOUT_S = 0.1, 300.0
_PER_PIPELINE = 1000
_UNSYNCED = {"appendfsync": "everysec"}
"""As Kafka's own default: a reply is in the operating system's hands, not on the disk."""


class Side(ABC):
    """One way for questions to come and replies to go; a new process for each turn."""

    @abstractmethod
    def through(self) -> float:
        """Replies a second, of a backlog."""

    @abstractmethod
    def one_by_one(self, count: int) -> list[float]:
        """Seconds from sending a question to reading its reply, one question at a time."""

    def turn(self, _: int) -> tuple[float, float]:
        """Replies a second, and the median of milliseconds one by one."""
        return self.through(), 1e3 * statistics.median(self.one_by_one(_ONE_BY_ONE))


class OfKafka(Side):
    """Kafka to Kafka."""

    def __init__(self, setting: Setting, server: ModelServer) -> None:
        self._setting = setting
        self._server = server

    @override
    def through(self) -> float:
        replies = self._setting.replies_topic()
        part = self._setting.aggregator([self._server.address], replies)
        return rate(self._setting.run(part, replies, self._setting.plan.queries))

    @override
    def one_by_one(self, count: int) -> list[float]:
        requests, replies = self._setting.replies_topic(), self._setting.replies_topic()
        with self._setting.aggregator([self._server.address], replies, topic=requests):
            return asyncio.run(self._ask(requests, replies, count))

    async def _ask(self, requests: str, replies: str, count: int) -> list[float]:
        found: list[float] = []
        async with connected(self._setting.bootstrap, requests, replies, {}) as connection:
            for number, text in enumerate(texts(count)):
                value = request([text], f"one-{number}", NO_WISHES).SerializeToString()
                began_s = time.perf_counter()
                await connection.producer.send(requests, value, key=str(number).encode())
                async with asyncio.timeout(_TIMEOUT_S):
                    await connection.consumer.getone()
                found.append(time.perf_counter() - began_s)
        return found


class OfRedis(Side):
    """What both sides over Redis have in common: a server of their own, filled anew for each turn."""

    def __init__(self, plan: Plan, server: ModelServer, settings: dict[str, str]) -> None:
        self._plan = plan
        self._server = server
        self._settings = settings

    @abstractmethod
    def _part(self, address: str) -> Part:
        """The process that answers."""

    @abstractmethod
    def _put(self, client: Any, number: int, text: str) -> None:
        """Send a question."""

    @abstractmethod
    def _replies(self, client: Any) -> int:
        """How many replies were written."""

    @abstractmethod
    def _next(self, client: Any, after: Any) -> Any:
        """Wait for the reply behind the last one."""

    @override
    def through(self) -> float:
        with self._redis() as server, server.client() as client:
            found = texts(self._plan.queries)
            for start in range(0, len(found), _PER_PIPELINE):
                with client.pipeline(transaction=False) as pipeline:
                    for number, text in enumerate(found[start : start + _PER_PIPELINE], start):
                        self._put(pipeline, number, text)
                    pipeline.execute()
            part = self._part(server.address)
            part.launch()
            try:
                return rate(self._watch(part, client))
            finally:
                part.stop()

    def _watch(self, part: Part, client: Any) -> list[Progress]:
        looks: list[Progress] = []
        ends_s = time.monotonic() + _TIMEOUT_S
        while not looks or looks[-1].replies < self._plan.queries:
            part.child.raise_if_ended(part.advice)
            if time.monotonic() > ends_s:
                raise StackError(f"the backlog was not answered in {_TIMEOUT_S:g} s")
            looks.append(Progress(time.monotonic(), cpu_s(part.pid), self._replies(client)))
            time.sleep(_LOOK_S)
        return looks

    @override
    def one_by_one(self, count: int) -> list[float]:
        found: list[float] = []
        with self._redis() as server, server.client() as client, self._part(server.address):
            last: Any = None
            for number, text in enumerate(texts(count)):
                began_s = time.perf_counter()
                self._put(client, number, text)
                last = self._next(client, last)
                found.append(time.perf_counter() - began_s)
        return found

    @contextmanager
    def _redis(self) -> Generator[RedisServer]:
        folder = self._plan.folder / "redis"
        shutil.rmtree(folder, ignore_errors=True)
        with RedisServer(folder, settings=self._settings, log_file=self._plan.folder / "redis.log") as server:
            yield server
        shutil.rmtree(folder, ignore_errors=True)


class Streams(OfRedis):
    """An aggregator between two streams."""

    @override
    def _part(self, address: str) -> Part:
        settings = {
            "KAFKA__ENABLED": "false",
            "REDIS__ENABLED": "true",
            "REDIS__SERVERS": address,
            "REDIS__CLIENT": json.dumps({"max_stream_length": 10**9}),
            "BATCHING__COALESCE": "false",
        }
        log = self._plan.folder / "aggregator.log"
        return Aggregator(log, kafka="localhost:1", model=MODEL, servers=[self._server.address], settings=settings)

    @override
    def _put(self, client: Any, number: int, text: str) -> None:
        client.xadd("embed.requests.v1", {"value": request([text], f"bench-{number}", NO_WISHES).SerializeToString()})

    @override
    def _replies(self, client: Any) -> int:
        return int(client.xlen("embed.replies.v1"))

    @override
    def _next(self, client: Any, after: Any) -> Any:
        found = client.xread({"embed.replies.v1": after or "0"}, block=int(_TIMEOUT_S * 1000))
        return found[0][1][-1][0]


class List(OfRedis):
    """No aggregator: a list, from which the model server's side pulls."""

    def __init__(self, plan: Plan, server: ModelServer, settings: dict[str, str]) -> None:
        super().__init__(plan, server, settings)
        self._tokenizer = Tokenizer(tokenizer_folder())

    @override
    def _part(self, address: str) -> Part:
        where = ["--redis", address, "--server", self._server.address, "--token-budget", str(self._plan.token_budget)]
        return Program("loadtest.lab.bench.programs.list_puller", where, self._plan.folder / "list_puller.log")

    @override
    def _put(self, client: Any, number: int, text: str) -> None:
        head = struct.pack("<I", int(self._tokenizer.count([text]).lengths[0]))
        value = request([text], f"bench-{number}", NO_WISHES).SerializeToString()
        client.rpush(list_puller.REQUESTS, head + value)

    @override
    def _replies(self, client: Any) -> int:
        return int(client.llen(list_puller.REPLIES))

    @override
    def _next(self, client: Any, after: Any) -> Any:
        return client.blpop([list_puller.REPLIES], _TIMEOUT_S)


def measure(plan: Plan) -> list[Figure]:
    """All in turns on one model server."""
    server = ModelServer(plan.folder / "modelserver.log", settings={"PROFILE__CACHE": str(plan.profiles)})
    with backlog(plan) as setting, server:
        sides: dict[str, Side] = {
            "kafka": OfKafka(setting, server),
            "redis": Streams(plan, server, _UNSYNCED),
            "redis_always": Streams(plan, server, {}),
            "list": List(plan, server, _UNSYNCED),
        }
        turns = {name: side.turn for name, side in sides.items()}
        found = in_turns(NAME, plan.repeats, turns, lambda turn: f"{turn[0]:.0f}/s {turn[1]:.1f} ms")
        dtype = dtype_of(server)
    notes = {
        "kafka": f"{plan.queries} unique questions, MiniLM, {dtype}; p50 of {_ONE_BY_ONE} one at a time",
        "redis": "streams through an aggregator, appendfsync everysec",
        "redis_always": "streams through an aggregator, appendfsync always",
        "list": f"a list pulled by a Lua script, {plan.token_budget} tokens, no aggregator, appendfsync everysec",
    }
    medians = Medians(NAME, plan.repeats, "")
    rates = {name: [per_s for per_s, _ in turns] for name, turns in found.items()}
    return [
        *(medians.of(f"{name}_throughput", "query/s", each, notes[name]) for name, each in rates.items()),
        *(medians.of(f"{name}_p50", "ms", (p50 for _, p50 in turns), notes[name]) for name, turns in found.items()),
        *(
            medians.ratio(f"redis_over_{name}", rates["redis"], each, notes[name])
            for name, each in rates.items()
            if name != "redis"
        ),
    ]
