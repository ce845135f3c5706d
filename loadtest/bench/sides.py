"""The sides of P1, P2 and P5: MiniLM behind aggregator and model server, and behind what users run today."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import aiohttp
import grpc as grpc_library
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from aggregator.errors import ungrouped
from loadtest.bench.callers import Callers, Load, Parts, Turn, callers
from loadtest.bench.figures import Figure
from loadtest.bench.peers import Peer, vllm_embeddings
from loadtest.bench.setting import Plan
from loadtest.bench.turns import Medians, in_turns
from loadtest.kit import openai
from loadtest.kit.openai import OpenAIRun
from loadtest.kit.tally import Tally
from loadtest.stack.errors import StackError
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.service import Aggregator, ModelServer, without_kafka
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc

_DESCRIBE_S = 300.0
_WAKE_S = 1.0
_WARM_UP = 256
_FEWEST = 16


class Side:
    """A server that embeds, with all its processes; it speaks OpenAI's API at `url`."""

    def __init__(self, url: str, parts: Parts) -> None:
        self.url = url
        self.parts = parts

    def turn(self, callers: Callers, load: Load, count: int) -> Turn:
        """Send this many unique questions. Raises StackError when one is not embedded."""
        return callers.turn([self.target(load)], load, count, self.parts)

    def target(self, load: Load) -> str:
        """Where this load is sent."""
        assert load.http, "This server speaks nothing else. This is a bug."
        return self.url

    def embeddings(self, texts: list[str]) -> NDArray[np.float32]:
        """Float32 [texts, dimensions]. Raises StackError when one is not embedded."""
        tally = Tally(np.arange(len(texts), dtype=np.int64))
        try:
            with ungrouped(aiohttp.ClientError, TimeoutError):
                asyncio.run(openai.run(texts, tally, OpenAIRun(self.url, MODEL)))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StackError(f"a request was not answered: {error!r}") from error
        if not tally.complete:
            raise StackError("a text was not embedded")
        return tally.embeddings()


class Ours(Side):
    """Aggregator and model server, which computes in `dtype`."""

    def __init__(self, aggregator: Aggregator, server: ModelServer, dtype: str) -> None:
        url = f"http://{aggregator.http_address}/v1/embeddings"
        super().__init__(url, {"aggregator": [aggregator], "model_server": [server]})
        self.address = aggregator.address
        self.server = server
        self.dtype = dtype

    @override
    def target(self, load: Load) -> str:
        return self.url if load.http else self.address


class OpenAI(Side):
    """A server that speaks OpenAI's embeddings API, and nothing else."""

    def __init__(self, server: Peer) -> None:
        super().__init__(server.url, {"server": [server]})
        self.server = server

    @override
    def turn(self, callers: Callers, load: Load, count: int) -> Turn:
        return super().turn(callers, replace(load, http=True), count)


class Theirs(OpenAI):
    """One that is stopped but for its turns: some spin while they wait."""

    @override
    def turn(self, callers: Callers, load: Load, count: int) -> Turn:
        with awake(self.server):
            return super().turn(callers, load, count)

    @override
    def embeddings(self, texts: list[str]) -> NDArray[np.float32]:
        with awake(self.server):
            return super().embeddings(texts)


def timed(bench: str, plan: Plan, kinds: Mapping[str, tuple[Side, Load]], seconds: float) -> dict[str, list[Turn]]:
    """Each side under its load, in turns that last about so many seconds."""
    sides: dict[str, Callable[[int], Turn]] = {}
    with callers(plan.folder) as calling:
        for name, (side, load) in kinds.items():
            rate = side.turn(calling, load, max(_FEWEST, round(plan.turn_share * _WARM_UP))).queries_per_s
            count = max(load.callers * load.per_call, round(plan.turn_share * seconds * rate))
            sides[name] = partial(_turn, side, calling, load, count)
        return in_turns(bench, plan.repeats, sides, lambda turn: turn.said)


def usual(found: Mapping[str, Sequence[Turn]], medians: Medians) -> list[Figure]:
    """Throughput, latencies and processor time of each side; the cores and the busiest threads of its processes."""
    figures: list[Figure] = []
    for name, turns in found.items():
        mark = next((turn.mark for turn in turns if turn.marked), "")
        values = [turn.figures() for turn in turns]
        for figure, unit in values[0]:
            notes = medians.notes + mark
            figures.append(medians.of(f"{name}_{figure}", unit, (each[figure, unit] for each in values), notes))
    return figures


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


def _turn(side: Side, calling: Callers, load: Load, count: int, _: int) -> Turn:
    return side.turn(calling, load, count)


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
    return described(server).dtype


def described(server: ModelServer) -> pb.DescribeResponse:
    with grpc_library.insecure_channel(server.address) as channel:
        return pb_grpc.ModelServerStub(channel).Describe(pb.DescribeRequest(), timeout=_DESCRIBE_S)
