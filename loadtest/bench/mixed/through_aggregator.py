"""Calls to an aggregator."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import grpc.aio
from typing_extensions import override

from aggregator.errors import ungrouped
from loadtest.bench.mixed.requests import TIMEOUT_S, Asked, Calls, Task
from loadtest.stack.errors import StackError
from protos.embedding.v1 import embedding_pb2, embedding_pb2_grpc
from protos.generation.v1 import generation_pb2, generation_pb2_grpc


class _Calls(Calls):
    def __init__(self, channel: grpc.aio.Channel, models: Mapping[Task, str]) -> None:
        super().__init__()
        self._models = models
        self._embeddings = embedding_pb2_grpc.EmbeddingsStub(channel)
        self._generations = generation_pb2_grpc.GenerationStub(channel)

    @override
    async def embed(self, asked: Asked) -> None:
        inputs = [embedding_pb2.Input(token_ids=embedding_pb2.TokenIds(ids=asked.token_ids))]
        request = embedding_pb2.EmbedRequest(model=self._models[Task.EMBED], inputs=inputs)
        answer = await self._embeddings.Embed(request, timeout=TIMEOUT_S)
        if answer.embeddings[0].status.code:
            raise StackError(f"a request was not embedded: {answer.embeddings[0].status.message}")

    @override
    async def generate(self, asked: Asked, began_s: float) -> None:
        request = generation_pb2.GenerateRequest(
            model=self._models[Task.GENERATE],
            token_ids=embedding_pb2.TokenIds(ids=asked.token_ids),
            sampling=generation_pb2.Sampling(max_tokens=asked.new_tokens, temperature=0.0, ignore_eos=True),
        )
        last_s, tokens = 0.0, 0
        async for response in self._generations.Generate(request, timeout=TIMEOUT_S):
            now_s = time.monotonic()
            self.heard.note_tokens(now_s, last_s, began_s)
            last_s, tokens = now_s, response.usage.completion_tokens
        asked.check(tokens)


@asynccontextmanager
async def connected(address: str, models: Mapping[Task, str]) -> AsyncGenerator[Calls]:
    """`models`: the name of the model for each task. Raises StackError when a call fails."""
    try:
        with ungrouped(grpc.aio.AioRpcError, StackError):
            async with grpc.aio.insecure_channel(address) as channel:
                yield _Calls(channel, models)
    except grpc.aio.AioRpcError as error:
        raise StackError(f"a request was not answered: {error.code().name}: {error.details()}") from error
