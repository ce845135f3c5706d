"""Callers and producers that ask for embeddings and generations at once, and compare every vector and every text."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from protos.embedding.v1 import embedding_pb2, embedding_pb2_grpc
from protos.generation.v1 import generation_pb2, generation_pb2_grpc
from tests.faults.topic_logs import read_topics
from tests.support.kafka_client import KafkaClient, Sent
from tests.support.until import until

CALL_S = 120.0
NUMBERS = range(24)
POISON = 9947

Answer = bytes | tuple[int, ...]
"""A vector's bytes, or the ids of a text."""


def to_embed(number: int, request_id: str = "", model: str = "") -> embedding_pb2.EmbedRequest:
    """The query of that number; some are long."""
    text = f"what is fact {number} of rivers" + " and of stars" * (number % 7) * 5
    return embedding_pb2.EmbedRequest(request_id=request_id, model=model, inputs=[embedding_pb2.Input(text=text)])


def to_generate(number: int, request_id: str = "", model: str = "") -> generation_pb2.GenerateRequest:
    """The prompt of that number: greedy, or sampled by a seed."""
    sampling = generation_pb2.Sampling(max_tokens=60, temperature=0.8 * (number % 2), seed=number, ignore_eos=True)
    return generation_pb2.GenerateRequest(
        request_id=request_id,
        model=model,
        prompt=f"tell me fact {number} of trains",
        sampling=sampling,
        include_token_ids=True,
    )


class Failed(Exception):
    """A call failed."""


async def embedded(channel: grpc.aio.Channel, request: embedding_pb2.EmbedRequest) -> bytes:
    """The vector for one query. Raises Failed."""
    try:
        answer = await embedding_pb2_grpc.EmbeddingsStub(channel).Embed(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        raise Failed(f"{error.code().name}: {error.details()}") from error
    return bytes(answer.embeddings[0].embedding)


async def generated(channel: grpc.aio.Channel, request: generation_pb2.GenerateRequest) -> tuple[int, ...]:
    """The ids of one text, each received once and in order. Raises Failed."""
    ids: list[int] = []
    try:
        async for response in generation_pb2_grpc.GenerationStub(channel).Generate(request, timeout=CALL_S):
            assert response.index == len(ids), "a token is missing, or came twice"
            ids += response.token_ids
    except grpc.aio.AioRpcError as error:
        raise Failed(f"{error.code().name}: {error.details()}") from error
    return tuple(ids)


@dataclass
class Load:
    """Calls to `address` and records of both tasks, held against the answers of a run without faults.

    `options`: of the channels. `models`: the model that each task's calls name.
    """

    address: str
    clients: Mapping[str, KafkaClient]
    options: Sequence[tuple[str, Any]] = ()
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    expected: dict[str, dict[int, Answer]] = field(default_factory=dict[str, dict[int, Answer]])
    asked: int = 0
    answered: int = 0
    duplicates: int = 0
    unanswered: int = 0
    wrong: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])
    over: bool = False

    async def learn(self) -> None:
        """Ask for everything while nothing fails."""
        async with grpc.aio.insecure_channel(self.address, options=self.options) as channel:
            for task in ("embed", "generate"):
                answers = await asyncio.gather(*(self._ask(channel, task, number) for number in NUMBERS))
                self.expected[task] = dict(zip(NUMBERS, answers, strict=True))
        texts = self.expected["generate"].values()
        assert not any(POISON in text for text in texts), "a text holds the poison: choose other prompts"

    async def call(self, chance: random.Random) -> None:
        """Ask for a vector or a text until the load is over."""
        async with grpc.aio.insecure_channel(self.address, options=self.options) as channel:
            while not self.over:
                task, number = chance.choice(("embed", "embed", "generate")), chance.choice(NUMBERS)
                self.asked += 1
                try:
                    self._judge(f"call {task} {number}", task, number, await self._ask(channel, task, number))
                except Failed as error:
                    self.errors.append(f"{task} {number}: {error}")

    async def answers(self, count: int) -> None:
        """Wait until `count` more calls are answered. Raises TimeoutError."""
        wanted = self.answered + count
        await until(lambda: self.answered >= wanted, CALL_S)

    async def produce(self, every_s: float, sent: dict[str, tuple[str, int]]) -> None:
        """Send records of both tasks until the load is over."""
        for place in itertools.count():
            if self.over:
                return
            number = NUMBERS[place % len(NUMBERS)]
            for task, make in (("embed", to_embed), ("generate", to_generate)):
                request_id = f"{task}-{place}"
                sent[request_id] = task, number
                await self.clients[task].produce(Sent(make(number, request_id).SerializeToString()))
            await asyncio.sleep(every_s)

    async def collect(self, sent: Mapping[str, tuple[str, int]]) -> None:
        """Compare every reply."""
        reply_ids: dict[str, set[str]] = {request_id: set() for request_id in sent}
        for task, client in self.clients.items():
            wanted = sum(name == task for name, _ in sent.values())
            await self._until_replied(client, wanted)
            async for record in read_topics(client.bootstrap, client.topics.replies):
                self._compare(task, record.value or b"", sent, reply_ids)
        self.asked += len(sent)
        self.unanswered = sum(not ids for ids in reply_ids.values())
        self.wrong += [f"{name} has {len(ids)} reply_ids" for name, ids in reply_ids.items() if len(ids) > 1]

    def _compare(
        self, task: str, value: bytes, sent: Mapping[str, tuple[str, int]], reply_ids: dict[str, set[str]]
    ) -> None:
        reply: embedding_pb2.EmbedResponse | generation_pb2.GenerateResponse
        answer: Answer
        if task == "embed":
            reply = vectors = embedding_pb2.EmbedResponse.FromString(value)
            answer = bytes(vectors.embeddings[0].embedding) if vectors.embeddings else b""
        else:
            reply = text = generation_pb2.GenerateResponse.FromString(value)
            answer = tuple(text.token_ids)
        self.duplicates += bool(reply_ids[reply.request_id])
        reply_ids[reply.request_id].add(reply.reply_id)
        if reply.status.code:
            self.errors.append(f"{reply.request_id}: {reply.status.message}")
        else:
            self._judge(reply.request_id, task, sent[reply.request_id][1], answer)

    async def _until_replied(self, client: KafkaClient, wanted: int) -> None:
        await client.until(lambda: len(self._replied(client)) >= wanted, timeout_s=CALL_S)

    async def _ask(self, channel: grpc.aio.Channel, task: str, number: int) -> Answer:
        model = self.models.get(task, "")
        if task == "embed":
            return await embedded(channel, to_embed(number, model=model))
        return await generated(channel, to_generate(number, model=model))

    def _judge(self, what: str, task: str, number: int, answer: Answer) -> None:
        self.answered += 1
        if answer != self.expected[task][number]:
            self.wrong.append(what)

    def _replied(self, client: KafkaClient) -> set[bytes | None]:
        return {record.key or record.value for record in client.replies}

    def counts(self) -> dict[str, int]:
        """What became of all that was asked for."""
        return {
            "sent": self.asked,
            "answered": self.answered - self.duplicates,
            "lost": self.unanswered,
            "wrong": len(self.wrong),
            "duplicates": self.duplicates,
        }

    def check(self) -> None:
        """Nothing was lost, wrong or failed."""
        assert (self.wrong, self.errors, self.unanswered) == ([], [], 0)
