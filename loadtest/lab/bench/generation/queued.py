"""P9: 1,000 texts at a time on synthetic engines while 10,000 wait from Kafka: what one that waits takes of memory."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack

import grpc.aio
import psutil
from aiokafka import AIOKafkaProducer

from aggregator.errors import ungrouped
from loadtest.clients.prometheus import totals
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.setting import Plan, create_topics, kafka
from loadtest.lab.processor import cpu_s
from loadtest.screen import ERRORS
from loadtest.stack.errors import StackError
from loadtest.stack.service import Aggregator, ModelServer
from protos.embedding.v1 import embedding_pb2
from protos.generation.v1 import generation_pb2 as pb
from protos.generation.v1 import generation_pb2_grpc as pb_grpc

NAME = "P9"
_STREAMS, _QUEUED, _FIRST_QUEUED = 1000, 10_000, 1000
"""The first that wait make what is made once; only those after them count."""
_NEARLY = 0.9
"""Of them wait: servers have some seats left."""
_SERVERS = 4
"""Each runs 256 texts at once."""
_CONNECTIONS = 4
_STEP_S = 0.25
_PROMPT = list(range(1000, 1016))
_PROMPT_BYTES = 4 * len(_PROMPT)
_LOOK_S = 8.0
_TIMEOUT_S = 240.0
_REQUESTS, _REPLIES = "bench.texts", "bench.texts.replies"
_ENGINE = {
    "ENGINE__KIND": "synthetic",
    "PROFILE__ENABLED": "false",
    "MODEL__TASK": "generate",
    "MODEL__MAX_INPUT_TOKENS": "2048",
    "SYNTHETIC__FIXED_S": str(_STEP_S),
    "SYNTHETIC__PER_TOKEN_S": "0",
}


def measure(plan: Plan) -> list[Figure]:
    """Once: a figure of memory is as good as its number of texts."""
    with kafka(plan) as setting, ExitStack() as stack:
        asyncio.run(create_topics(setting.bootstrap, [_REQUESTS, _REPLIES]))
        servers = [
            stack.enter_context(ModelServer(plan.folder / f"modelserver-{number}.log", settings=_ENGINE))
            for number in range(_SERVERS)
        ]
        topic = {"name": _REQUESTS, "task": "generate", "reply_topic": _REPLIES}
        aggregator = stack.enter_context(
            Aggregator(
                plan.folder / "aggregator.log",
                kafka=setting.bootstrap,
                model=servers[0].model,
                servers=[server.address for server in servers],
                settings={"KAFKA__TOPICS": json.dumps([topic]), "KAFKA__GROUP_ID": _REQUESTS},
            )
        )
        return asyncio.run(_Waiting(aggregator, setting.bootstrap).measure())


class _Waiting:
    """The streams, and what waits behind them."""

    def __init__(self, aggregator: Aggregator, bootstrap: str) -> None:
        self._aggregator = aggregator
        self._bootstrap = bootstrap
        self._begun = self._messages = self._queued = 0

    async def measure(self) -> list[Figure]:
        channels = [
            grpc.aio.insecure_channel(self._aggregator.address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(_CONNECTIONS)
        ]
        stubs = [pb_grpc.GenerationStub(channel) for channel in channels]
        try:
            with ungrouped(grpc.aio.AioRpcError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                    reading = [
                        tasks.create_task(self._read(stubs[number % _CONNECTIONS])) for number in range(_STREAMS)
                    ]
                    found = await self._look()
                    for task in reading:
                        task.cancel()
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            raise StackError(f"the texts did not come: {error!r}") from error
        finally:
            for channel in channels:
                await channel.close()
        return found

    async def _look(self) -> list[Figure]:
        while self._begun < _STREAMS:  # noqa: ASYNC110 - counted by a thousand tasks
            await asyncio.sleep(0.1)
        pid = self._aggregator.pid
        before_s, messages, began_s = cpu_s(pid), self._messages, time.monotonic()
        await asyncio.sleep(_LOOK_S)
        messages, took_s = self._messages - messages, time.monotonic() - began_s
        cpu_us = (cpu_s(pid) - before_s) / messages * 1e6
        ERRORS.print(f"{NAME}: {messages / took_s:.0f} tokens/s to {_STREAMS} streams")
        first_texts, first_bytes = await self._queue(_FIRST_QUEUED)
        texts, held_bytes = await self._queue(first_texts + _QUEUED)
        own_bytes = (held_bytes - first_bytes) / (texts - first_texts) - len(_record(0)) - _PROMPT_BYTES
        notes = f"{_STREAMS} streams at {_SERVERS} synthetic engines, {_QUEUED} texts of {len(_PROMPT)} tokens wait"
        return [
            Figure(NAME, "tokens_per_s", messages / took_s, "token/s", 1, notes),
            Figure(NAME, "aggregator_cpu", cpu_us, "us/token", 1, f"{notes}, one message each"),
            Figure(NAME, "memory_per_queued_text", own_bytes / 1024, "KiB", 1, f"{notes}; without its record", "≤ 4"),
        ]

    async def _queue(self, wanted: int) -> tuple[int, int]:
        """Let more texts wait, some `wanted` in all: how many do, and the bytes that the aggregator takes then."""
        await _fill(self._bootstrap, wanted - self._queued)
        self._queued = wanted
        texts = -1
        while texts < _NEARLY * wanted:
            await asyncio.sleep(1.0)
            waiting = await asyncio.to_thread(totals, self._aggregator.metrics_address)
            texts = int(waiting["embed_queue_tokens"]) // len(_PROMPT)
        await asyncio.sleep(2.0)
        return texts, psutil.Process(self._aggregator.pid).memory_info().rss

    async def _read(self, stub: pb_grpc.GenerationAsyncStub) -> None:
        asked = pb.GenerateRequest(
            token_ids=embedding_pb2.TokenIds(ids=_PROMPT),
            sampling=pb.Sampling(max_tokens=2000, ignore_eos=True),
            priority=embedding_pb2.PRIORITY_INTERACTIVE,
        )
        first = True
        async for _ in stub.Generate(asked, timeout=_TIMEOUT_S):
            self._begun += first
            first = False
            self._messages += 1


async def _fill(bootstrap: str, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=20) as producer:
        sent = [await producer.send(_REQUESTS, _record(number)) for number in range(count)]
        await asyncio.gather(*sent)


def _record(number: int) -> bytes:
    sampling = pb.Sampling(max_tokens=100)
    ids = embedding_pb2.TokenIds(ids=_PROMPT)
    return pb.GenerateRequest(request_id=f"text-{number:05}", token_ids=ids, sampling=sampling).SerializeToString()
