"""The two sides of P1 and P5: MiniLM behind aggregator and model server, and behind vLLM's own server."""

from __future__ import annotations

import asyncio
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
import grpc as grpc_library
import numpy as np
from typing_extensions import override

from aggregator.errors import ungrouped
from loadtest.bench.instant_modelserver import MODEL
from loadtest.bench.setting import Plan
from loadtest.bench.vllm_server import VllmServer, embedding_server
from loadtest.clients import grpc, grpc_stream, openai
from loadtest.clients.grpc import GrpcRun
from loadtest.clients.openai import OpenAIRun
from loadtest.options import unique
from loadtest.processor import family_cpu_s
from loadtest.questions import bundled_questions
from loadtest.stack.errors import StackError
from loadtest.stack.part import Part
from loadtest.stack.service import Aggregator, ModelServer, without_kafka
from loadtest.tally import Tally
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc

_START_S = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """How queries are sent: `callers` requests at a time, `per_call` queries in each, on a stream or by calls."""

    callers: int
    per_call: int = 1
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn in figures; CPU time in µs per query, `server_cpu_us` of all its processes."""

    queries_per_s: float
    p50_s: float
    p99_s: float
    server_cpu_us: float
    client_cpu_us: float


class Side(ABC):
    """A server that embeds, with all its processes."""

    def __init__(self, *parts: Part) -> None:
        self._parts = parts

    def turn(self, load: Load, count: int) -> Turn:
        """Send so many unique questions. Raises StackError when one is not embedded."""
        questions = bundled_questions()
        texts = unique([questions[number % len(questions)] for number in range(count)])
        tally = Tally(np.arange(count, dtype=np.int64), keep_embeddings=False)
        before_s, client_before_s = self._cpu_s(), time.process_time()
        try:
            with ungrouped(aiohttp.ClientError, TimeoutError):
                asyncio.run(self._send(texts, tally, load))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StackError(f"a request was not answered: {error!r}") from error
        client_s, server_s = time.process_time() - client_before_s, self._cpu_s() - before_s
        summary = tally.summary()
        if summary.errors or summary.lost:
            raise StackError(f"{summary.lost} queries were lost, others failed: {summary.errors}")
        latency_s = summary.latency_s
        each_us = 1e6 / count
        return Turn(summary.queries_per_s, latency_s["p50"], latency_s["p99"], server_s * each_us, client_s * each_us)

    @abstractmethod
    async def _send(self, texts: list[str], tally: Tally, load: Load) -> None:
        """Send them all and record what comes of each."""

    def _cpu_s(self) -> float:
        return sum(family_cpu_s(part.pid) for part in self._parts)


class Ours(Side):
    """Aggregator and model server, which computes in `dtype`."""

    def __init__(self, aggregator: Aggregator, server: ModelServer, dtype: str) -> None:
        super().__init__(aggregator, server)
        self.address = aggregator.address
        self.dtype = dtype

    @override
    async def _send(self, texts: list[str], tally: Tally, load: Load) -> None:
        send = grpc_stream.run if load.stream else grpc.run
        await send(texts, tally, GrpcRun(self.address, load.callers, load.per_call), lambda: None)


class Theirs(Side):
    """vLLM's own server."""

    def __init__(self, server: VllmServer) -> None:
        super().__init__(server)
        self._url = server.url

    @override
    async def _send(self, texts: list[str], tally: Tally, load: Load) -> None:
        await openai.run(texts, tally, OpenAIRun(self._url, MODEL, load.callers, load.per_call))


@dataclass(frozen=True, slots=True)
class Servers:
    """A model server, the dtype that it chose on this machine, and vLLM's own server with the same."""

    server: ModelServer
    vllm: VllmServer
    dtype: str


@contextmanager
def both_servers(plan: Plan) -> Generator[Servers]:
    """Start one after the other; the model server measures its saturation point while there is no other."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    profiles = plan.folder / "profiles"
    shutil.rmtree(profiles, ignore_errors=True)  # one that was measured beside other work would be taken again
    server = ModelServer(plan.folder / "modelserver.log", settings={"PROFILE__CACHE": str(profiles)})
    with started(server):
        dtype = dtype_of(server)
        vllm = embedding_server(plan.folder / "vllm.log", dtype=dtype)
        with started(vllm):
            yield Servers(server, vllm, dtype)


@contextmanager
def both_sides(plan: Plan) -> Generator[tuple[Ours, Theirs]]:
    """Both servers, and an aggregator before ours."""
    with both_servers(plan) as servers:
        server = servers.server
        aggregator = without_kafka(plan.folder / "aggregator.log", model=MODEL, servers=[server.address])
        with started(aggregator):
            yield Ours(aggregator, server, servers.dtype), Theirs(servers.vllm)


def dtype_of(server: ModelServer) -> str:
    """What it computes in, which it chose by the processor."""
    with grpc_library.insecure_channel(server.address) as channel:
        return pb_grpc.ModelServerStub(channel).Describe(pb.DescribeRequest(), timeout=_START_S).dtype


@contextmanager
def started(part: Part) -> Generator[None]:
    """Ready once a model is loaded, and stopped in the end. Raises StackError."""
    part.launch()
    try:
        part.wait(_START_S)
        yield
    finally:
        part.stop()
