"""Callers and producers that ask for embeddings and generations at once, and compare every vector and every text."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from loadtest.stack.service import ModelServer
from protos.embedding.v1 import embedding_pb2, embedding_pb2_grpc
from protos.generation.v1 import generation_pb2, generation_pb2_grpc
from protos.ranking.v1 import ranking_pb2, ranking_pb2_grpc
from tests.faults.rows import Figures
from tests.faults.topic_logs import read_topics
from tests.support.kafka_client import KafkaClient, Sent
from tests.support.scrape import metrics
from tests.support.until import until, until_beside

CALL_S = 300.0
POISON = 9947
SEED = int(os.environ.get("FAULTS_SEED", "1"))

Answer = bytes | tuple[str, tuple[int, ...]] | tuple[tuple[int, float], ...]
"""A vector's bytes, a text and its ids, or the places and scores of ranked documents."""
Fault = Callable[[random.Random], Awaitable[None]]
"""Breaks something, and mends it."""


class Failed(Exception):
    """A call failed."""


async def embedded(channel: grpc.aio.Channel, request: embedding_pb2.EmbedRequest) -> bytes:
    try:
        answer = await embedding_pb2_grpc.EmbeddingsStub(channel).Embed(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        raise Failed(f"{error.code().name}: {error.details()}") from error
    return bytes(answer.embeddings[0].embedding)


async def ranked(channel: grpc.aio.Channel, request: ranking_pb2.RankRequest) -> tuple[tuple[int, float], ...]:
    try:
        answer = await ranking_pb2_grpc.RankingStub(channel).Rank(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        raise Failed(f"{error.code().name}: {error.details()}") from error
    if answer.status.code:
        raise Failed(f"a document failed: {answer.status.message}")
    return _order(answer)


def _order(answer: ranking_pb2.RankResponse) -> tuple[tuple[int, float], ...]:
    return tuple((each.index, each.score) for each in answer.results)


async def generated(
    channel: grpc.aio.Channel, request: generation_pb2.GenerateRequest, *, wait_for_ready: bool = False
) -> tuple[generation_pb2.GenerateResponse, tuple[int, ...]]:
    """All of one text in one response, and its ids, each received once and in order. Raises Failed."""
    whole, ids = generation_pb2.GenerateResponse(), list[int]()
    stub = generation_pb2_grpc.GenerationStub(channel)
    try:
        async for response in stub.Generate(request, timeout=CALL_S, wait_for_ready=wait_for_ready):
            assert response.index == len(ids), "a token is missing, or came twice"
            ids += response.token_ids
            response.text = whole.text + response.text
            whole = response
    except grpc.aio.AioRpcError as error:
        raise Failed(f"{error.code().name}: {error.details()}") from error
    return whole, tuple(ids)


@dataclass
class Load:
    """Calls to `address` and records of the tasks of `clients`, held against the answers of a run without faults.

    `options`: of the channels. `models`: the model that each task's calls name. `numbers`: of the requests that are
    asked for again and again, whose texts have so many `tokens`. `servers` are broken, and the aggregators at
    `metrics_addresses` use them.
    """

    address: str
    clients: Mapping[str, KafkaClient]
    options: Sequence[tuple[str, Any]] = ()
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    numbers: Sequence[int] = range(24)
    tokens: int = 60
    servers: Sequence[ModelServer] = ()
    metrics_addresses: Sequence[str] = ()
    expected: dict[str, dict[int, Answer]] = field(default_factory=dict[str, dict[int, Answer]])
    asked: int = 0
    answered: int = 0
    resumed: int = 0
    duplicates: int = 0
    unanswered: int = 0
    wrong: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    over: bool = False

    def to_embed(self, number: int, request_id: str = "") -> embedding_pb2.EmbedRequest:
        """The query of that number; some are long."""
        text = f"what is fact {number} of rivers" + " and of stars" * (number % 7) * 5
        model = self.models.get("embed", "")
        return embedding_pb2.EmbedRequest(request_id=request_id, model=model, inputs=[embedding_pb2.Input(text=text)])

    def to_generate(self, number: int, request_id: str = "") -> generation_pb2.GenerateRequest:
        """The prompt of that number: greedy, or sampled by a seed."""
        return generation_pb2.GenerateRequest(
            request_id=request_id,
            model=self.models.get("generate", ""),
            prompt=f"tell me fact {number} of trains, 日本 🗼",
            sampling=generation_pb2.Sampling(
                max_tokens=self.tokens, temperature=0.8 * (number % 2), seed=number, ignore_eos=True
            ),
            include_token_ids=True,
        )

    def to_rank(self, number: int, request_id: str = "") -> ranking_pb2.RankRequest:
        """The query of that number with twenty documents; some are cut."""
        documents = [f"fact {number} of river {place} " * (1 + (place % 5) * 20) for place in range(20)]
        return ranking_pb2.RankRequest(
            request_id=request_id,
            model=self.models.get("rank", ""),
            query=f"what is fact {number} of rivers",
            documents=documents,
            truncate=embedding_pb2.TRUNCATE_END,
        )

    async def learn(self) -> None:
        async with grpc.aio.insecure_channel(self.address, options=self.options) as channel:
            for task in self.clients:
                answers = await asyncio.gather(*(self.ask(channel, task, number) for number in self.numbers))
                self.expected[task] = dict(zip(self.numbers, answers, strict=True))

    @asynccontextmanager
    async def flowing(self, callers: int, every_s: float | None = None) -> AsyncGenerator[None]:
        """Callers, and producers unless `every_s` is None, are at work inside; at the end every reply is compared."""
        sent: dict[str, tuple[str, int]] = {}
        async with asyncio.TaskGroup() as load:
            for number in range(callers):
                load.create_task(self.call(random.Random(number)))
            if every_s is not None:
                load.create_task(self._produce(every_s, sent))
            yield
            self.over = True
        await self._collect(sent)

    async def call(self, chance: random.Random) -> None:
        tasks = [task for task in ("embed", "embed", "generate", "rank") if task in self.clients]
        async with grpc.aio.insecure_channel(self.address, options=self.options) as channel:
            while not self.over:
                task, number = chance.choice(tasks), chance.choice(self.numbers)
                self.asked += 1
                try:
                    self.judge(f"call {task} {number}", task, number, await self.ask(channel, task, number))
                except Failed as error:
                    self.errors.append(f"{task} {number}: {error}")

    async def ask(self, channel: grpc.aio.Channel, task: str, number: int, *, wait_for_ready: bool = False) -> Answer:
        """Raises Failed."""
        if task == "embed":
            return await embedded(channel, self.to_embed(number))
        if task == "rank":
            return await ranked(channel, self.to_rank(number))
        whole, ids = await generated(channel, self.to_generate(number), wait_for_ready=wait_for_ready)
        self.resumed += whole.attempt > 0
        return whole.text, ids

    def judge(self, what: str, task: str, number: int, answer: Answer) -> None:
        self.answered += 1
        if answer != self.expected[task][number]:
            self.wrong.append(what)

    async def answers(self, count: int) -> None:
        """Wait until `count` more calls are answered. Raises TimeoutError."""
        wanted = self.answered + count
        await until(lambda: self.answered >= wanted, CALL_S)

    async def break_things(self, round_: Sequence[tuple[str, Fault]], seconds: float) -> None:
        """One fault of a round after another, each mended before the next, so long; one whole round at least."""
        chance, until_s = random.Random(SEED), time.monotonic() + seconds
        while True:
            for name, fault in chance.sample(round_, len(round_)):
                await fault(chance)
                self.faults[name] += 1
                await self.until_in_use(len(self.servers))
                await asyncio.sleep(chance.uniform(0.2, 1.5))
            if time.monotonic() >= until_s:
                return

    async def until_in_use(self, servers: int) -> None:
        """Wait until every aggregator uses exactly this number of servers. Raises TimeoutError."""

        def all_use_them() -> bool:
            shown = {metrics(address).value("tokenbatch_replica_state") for address in self.metrics_addresses}
            return shown == {servers}

        await until_beside(all_use_them, f"every aggregator uses {servers} servers", CALL_S)

    async def _produce(self, every_s: float, sent: dict[str, tuple[str, int]]) -> None:
        make: dict[str, Callable[[int, str], Message]] = {
            "embed": self.to_embed,
            "generate": self.to_generate,
            "rank": self.to_rank,
        }
        for place in itertools.count():
            if self.over:
                return
            number = self.numbers[place % len(self.numbers)]
            for task, client in self.clients.items():
                request_id = f"{task}-{place}"
                sent[request_id] = task, number
                await client.produce(Sent(make[task](number, request_id).SerializeToString()))
            await asyncio.sleep(every_s)

    async def _collect(self, sent: Mapping[str, tuple[str, int]]) -> None:
        reply_ids: dict[str, set[str]] = {request_id: set() for request_id in sent}
        for task, client in self.clients.items():
            wanted = sum(name == task for name, _ in sent.values())
            await client.until(partial(_are_replied, task, client, wanted), timeout_s=CALL_S)
            async for record in read_topics(client.bootstrap, client.topics.replies):
                reply, answer = _read(task, record)
                self.duplicates += bool(reply_ids[reply.request_id])
                reply_ids[reply.request_id].add(reply.reply_id)
                if reply.status.code:
                    self.errors.append(f"{reply.request_id}: {reply.status.message}")
                else:
                    self.judge(reply.request_id, task, sent[reply.request_id][1], answer)
        self.asked += len(sent)
        self.unanswered = sum(not ids for ids in reply_ids.values())
        self.wrong += [f"{name} has {len(ids)} reply_ids" for name, ids in reply_ids.items() if len(ids) > 1]

    def take(self, figures: Figures) -> None:
        """Keep the figures, and check that nothing was lost, wrong or failed."""
        figures.counts = {
            "sent": self.asked,
            "answered": self.answered - self.duplicates,
            "lost": self.unanswered,
            "wrong": len(self.wrong),
            "duplicates": self.duplicates,
        }
        figures.more |= {"faults": self.faults.total(), "by_fault": dict(self.faults), "resumed": self.resumed}
        self.check()

    def check(self) -> None:
        """Nothing was lost, wrong or failed."""
        assert (self.wrong, self.errors, self.unanswered) == ([], [], 0)


def _are_replied(task: str, client: KafkaClient, wanted: int) -> bool:
    return len({_read(task, record)[0].request_id for record in client.replies}) >= wanted


def _read(
    task: str, record: Any
) -> tuple[embedding_pb2.EmbedResponse | generation_pb2.GenerateResponse | ranking_pb2.RankResponse, Answer]:
    """A reply, and the vector, text or order in it."""
    if task == "rank":
        ranking = ranking_pb2.RankResponse.FromString(record.value or b"")
        return ranking, _order(ranking)
    if task == "embed":
        vectors = embedding_pb2.EmbedResponse.FromString(record.value or b"")
        return vectors, bytes(vectors.embeddings[0].embedding) if vectors.embeddings else b""
    text = generation_pb2.GenerateResponse.FromString(record.value or b"")
    return text, (text.text, tuple(text.token_ids))
