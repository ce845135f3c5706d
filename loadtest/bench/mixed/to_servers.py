"""Calls to model servers themselves, without an aggregator before them: each takes a request where fewest run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import grpc.aio
import numpy as np
from typing_extensions import override

from aggregator.errors import ungrouped
from loadtest.bench.mixed.requests import TIMEOUT_S, Asked, Calls, Heard, Task
from loadtest.stack.errors import StackError
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc

_UNBOUNDED = 1 << 30


class _Server:
    """One model server; all of its generations share one call."""

    def __init__(self, stub: pb_grpc.ModelServerAsyncStub, said: pb.DescribeResponse) -> None:
        self.unfinished = 0
        self._stub, self._said = stub, said
        self._commands: asyncio.Queue[pb.GenerateCommand] = asyncio.Queue()
        self._new: dict[int, asyncio.Queue[int | Exception]] = {}
        self._numbers = count(1)

    async def read(self) -> None:
        """Hand new tokens to those who wait for them."""

        async def commands() -> AsyncIterator[pb.GenerateCommand]:
            while True:
                yield await self._commands.get()

        try:
            async for step in self._stub.Generate(commands()):
                self._hand_out(step)
        except grpc.aio.AioRpcError as error:
            for waiting in self._new.values():
                waiting.put_nowait(error)

    def _hand_out(self, step: pb.GenerateStep) -> None:
        counts = np.frombuffer(step.counts, "<u4").tolist()
        for sequence, tokens in zip(np.frombuffer(step.sequences, "<u4").tolist(), counts, strict=True):
            self._new[sequence].put_nowait(tokens)
        for finished in step.finished:
            failed = StackError(f"a generation failed: {finished.message}") if finished.code else 0
            self._new.pop(finished.sequence).put_nowait(failed)

    async def embed(self, asked: Asked) -> None:
        request = pb.EmbedBatchRequest(
            batch_id="bench",
            model=self._said.model,
            model_revision=self._said.model_revision,
            token_ids=_packed(asked.token_ids),
            lengths=_packed([len(asked.token_ids)]),
            max_step_tokens=_UNBOUNDED,
        )
        await self._stub.EmbedBatch(request, timeout=TIMEOUT_S)

    async def generate(self, asked: Asked, heard: Heard, began_s: float) -> None:
        number = next(self._numbers)
        queue = self._new[number] = asyncio.Queue()
        start = pb.StartSequence(
            sequence=number,
            model=self._said.model,
            model_revision=self._said.model_revision,
            token_ids=_packed(asked.token_ids),
            sampling=pb.Sampling(max_tokens=asked.new_tokens, temperature=0.0, ignore_eos=True),
        )
        self._commands.put_nowait(pb.GenerateCommand(start=start))
        last_s, tokens = 0.0, 0
        while new := await queue.get():
            if isinstance(new, Exception):
                raise new
            now_s = time.monotonic()
            heard.note_tokens(now_s, last_s, began_s)
            last_s, tokens = now_s, tokens + new
        asked.check(tokens)


class _Calls(Calls):
    def __init__(self, servers: Mapping[Task, Sequence[_Server]]) -> None:
        super().__init__()
        self._servers = servers

    @override
    async def embed(self, asked: Asked) -> None:
        server = self._chosen(asked)
        await server.embed(asked)
        server.unfinished -= 1

    @override
    async def generate(self, asked: Asked, began_s: float) -> None:
        server = self._chosen(asked)
        await server.generate(asked, self.heard, began_s)
        server.unfinished -= 1

    def _chosen(self, asked: Asked) -> _Server:
        server = min(self._servers[asked.task], key=lambda each: each.unfinished)
        server.unfinished += 1
        return server


@asynccontextmanager
async def connected(addresses: Mapping[Task, Sequence[str]]) -> AsyncGenerator[Calls]:
    """The servers of each task. Raises StackError when a call fails."""
    try:
        with ungrouped(grpc.aio.AioRpcError, StackError):
            async with AsyncExitStack() as open_channels:
                servers: dict[str, _Server] = {}
                for address in dict.fromkeys(each for group in addresses.values() for each in group):
                    channel = await open_channels.enter_async_context(grpc.aio.insecure_channel(address))
                    stub = pb_grpc.ModelServerStub(channel)
                    servers[address] = _Server(stub, await stub.Describe(pb.DescribeRequest(), timeout=TIMEOUT_S))
                readers = [asyncio.create_task(servers[address].read()) for address in addresses[Task.GENERATE]]
                try:
                    yield _Calls({task: [servers[each] for each in group] for task, group in addresses.items()})
                finally:
                    for reader in readers:
                        reader.cancel()
    except grpc.aio.AioRpcError as error:
        raise StackError(f"a request was not answered: {error.code().name}: {error.details()}") from error


def _packed(values: Sequence[int]) -> bytes:
    return np.array(values, "<i4").tobytes()
