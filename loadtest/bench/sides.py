"""The sides of P1, P2 and P5: MiniLM behind aggregator and model server, and behind what users run today."""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import aiohttp
import grpc as grpc_library
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from aggregator.errors import ungrouped
from loadtest.bench.figures import Figure
from loadtest.bench.peers import Peer, vllm_embeddings
from loadtest.bench.processor import LIMIT, Used, family_cpu_s, threads_s
from loadtest.bench.setting import Plan, texts
from loadtest.bench.turns import Medians, in_turns
from loadtest.kit import grpc, openai
from loadtest.kit.grpc import GrpcRun
from loadtest.kit.openai import OpenAIRun
from loadtest.kit.tally import Tally
from loadtest.stack.errors import StackError
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.part import Part
from loadtest.stack.service import Aggregator, ModelServer, without_kafka
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc

_DESCRIBE_S = 300.0
_WAKE_S = 1.0
_WARM_UP = 256
_FEWEST = 16


@dataclass(frozen=True, slots=True)
class Load:
    """How queries are sent: `callers` requests at a time, `per_call` queries in each, on a stream or by calls.

    `http`: to an aggregator, by OpenAI's API.
    """

    callers: int
    per_call: int = 1
    stream: bool = False
    http: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn in figures; `server_cpu_us`: CPU time per query of all its processes, in µs.

    `load_thread`, `server_thread`: cores of the busiest thread of the load generator, and of the server.
    """

    queries_per_s: float
    p50_s: float
    p99_s: float
    server_cpu_us: float
    load_thread: float = 0.0
    server_thread: float = 0.0

    @property
    def said(self) -> str:
        """Its rate; marked where the load generator set it."""
        return f"{self.queries_per_s:.0f}/s{' (load generator at its limit)' if self.load_thread > LIMIT else ''}"


class Side(ABC):
    """A server that embeds, with all its processes."""

    def __init__(self, *parts: Part) -> None:
        self._parts = parts

    def turn(self, load: Load, count: int) -> Turn:
        """Send this many unique questions. Raises StackError when one is not embedded."""
        pids = (os.getpid(), *(part.pid for part in self._parts))
        before_s, threads, began_s = self._cpu_s(), [threads_s(pid) for pid in pids], time.monotonic()
        summary = self._sent(texts(count), load, keep_embeddings=False).summary()
        took_s, server_s, latency_s = time.monotonic() - began_s, self._cpu_s() - before_s, summary.latency_s
        used = [Used.between(one, threads_s(pid), took_s) for one, pid in zip(threads, pids, strict=True)]
        busiest = used[0].busiest, max((each.busiest for each in used[1:]), default=0.0)
        return Turn(summary.queries_per_s, latency_s["p50"], latency_s["p99"], server_s / count * 1e6, *busiest)

    def embeddings(self, texts: list[str]) -> NDArray[np.float32]:
        """Float32 [texts, dimensions]. Raises StackError when one is not embedded."""
        return self._sent(texts, Load(_FEWEST), keep_embeddings=True).embeddings()

    def _sent(self, texts: list[str], load: Load, *, keep_embeddings: bool) -> Tally:
        tally = Tally(np.arange(len(texts), dtype=np.int64), keep_embeddings=keep_embeddings)
        try:
            with ungrouped(aiohttp.ClientError, TimeoutError):
                asyncio.run(self._send(texts, tally, load))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StackError(f"a request was not answered: {error!r}") from error
        summary = tally.summary()
        if summary.errors or summary.lost:
            raise StackError(f"{summary.lost} queries were lost, others failed: {summary.errors}")
        return tally

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
        self._url = f"http://{aggregator.http_address}/v1/embeddings"
        self.dtype = dtype

    @override
    async def _send(self, texts: list[str], tally: Tally, load: Load) -> None:
        if load.http:
            await openai.run(texts, tally, OpenAIRun(self._url, MODEL, load.callers, load.per_call))
            return
        await grpc.run(
            texts, tally, GrpcRun(self.address, load.callers, load.per_call, stream=load.stream), lambda: None
        )


class OpenAI(Side):
    """A server that speaks OpenAI's embeddings API."""

    def __init__(self, server: Peer) -> None:
        super().__init__(server)
        self.server = server

    @override
    async def _send(self, texts: list[str], tally: Tally, load: Load) -> None:
        await openai.run(texts, tally, OpenAIRun(self.server.url, MODEL, load.callers, load.per_call))


class Theirs(OpenAI):
    """One that is stopped but for its turns: some spin while they wait."""

    @override
    def turn(self, load: Load, count: int) -> Turn:
        with awake(self.server):
            return super().turn(load, count)

    @override
    def embeddings(self, texts: list[str]) -> NDArray[np.float32]:
        with awake(self.server):
            return super().embeddings(texts)


def timed(bench: str, plan: Plan, kinds: Mapping[str, tuple[Side, Load]], seconds: float) -> dict[str, list[Turn]]:
    """Each side under its load, in turns that last about so many seconds."""
    sides: dict[str, Callable[[int], Turn]] = {}
    for name, (side, load) in kinds.items():
        rate = side.turn(load, max(_FEWEST, round(plan.turn_share * _WARM_UP))).queries_per_s
        count = max(load.callers * load.per_call, round(plan.turn_share * seconds * rate))
        sides[name] = partial(_turn, side, load, count)
    return in_turns(bench, plan.repeats, sides, lambda turn: turn.said)


_FIGURES: Sequence[tuple[str, str, Callable[[Turn], float]]] = (
    ("throughput", "query/s", lambda turn: turn.queries_per_s),
    ("p50", "ms", lambda turn: turn.p50_s * 1e3),
    ("p99", "ms", lambda turn: turn.p99_s * 1e3),
    ("server_cpu", "us/query", lambda turn: turn.server_cpu_us),
    ("load_thread", "cores", lambda turn: turn.load_thread),
    ("server_thread", "cores", lambda turn: turn.server_thread),
)


def usual(found: Mapping[str, Sequence[Turn]], medians: Medians) -> list[Figure]:
    """Throughput, latencies and processor time of each side."""
    return [
        medians.of(f"{name}_{figure}", unit, map(value, turns))
        for name, turns in found.items()
        for figure, unit, value in _FIGURES
    ]


def ratio(
    medians: Medians,
    found: Mapping[str, Sequence[Turn]],
    figure: str,
    sides: tuple[str, str],
    of: str = "queries_per_s",
) -> Figure:
    """Of two sides, turn by turn."""
    one, other = (map(attrgetter(of), found[side]) for side in sides)
    return medians.ratio(figure, one, other)


def _turn(side: Side, load: Load, count: int, _: int) -> Turn:
    return side.turn(load, count)


@dataclass(frozen=True, slots=True)
class Servers:
    """A model server, the dtype that it chose on this machine, and vLLM's own server with the same."""

    server: ModelServer
    vllm: Peer
    dtype: str


@contextmanager
def both_servers(plan: Plan) -> Generator[Servers]:
    """Start one after the other; the model server measures its saturation point while there is no other."""
    server = ModelServer(plan.folder / "modelserver.log", settings={"PROFILE__CACHE": str(plan.profiles)})
    with server:
        dtype = dtype_of(server)
        vllm = vllm_embeddings(plan.folder, dtype)
        with vllm:
            yield Servers(server, vllm, dtype)


@contextmanager
def both_sides(plan: Plan) -> Generator[tuple[Ours, Theirs]]:
    """Both servers, and an aggregator before ours."""
    with both_servers(plan) as servers:
        server = servers.server
        aggregator = without_kafka(plan.folder / "aggregator.log", model=MODEL, servers=[server.address])
        with aggregator, paused(servers.vllm) as vllm:
            yield Ours(aggregator, server, servers.dtype), vllm


@contextmanager
def paused(server: Peer) -> Generator[Theirs]:
    """A server that has started, but for its turns."""
    server.pause()
    try:
        yield Theirs(server)
    finally:
        server.resume()


@contextmanager
def awake(server: Peer) -> Generator[None]:
    """Let a stopped server run inside."""
    server.resume()
    time.sleep(_WAKE_S)
    try:
        yield
    finally:
        server.pause()


def dtype_of(server: ModelServer) -> str:
    with grpc_library.insecure_channel(server.address) as channel:
        return pb_grpc.ModelServerStub(channel).Describe(pb.DescribeRequest(), timeout=_DESCRIBE_S).dtype
