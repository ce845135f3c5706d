"""The running system: a model server and an aggregator on this machine, and gRPC calls that come at random."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from selectors import SelectSelector
from statistics import fmean
from typing import Any, TypeVar

import grpc
import numpy as np
import numpy.typing as npt

from aggregator.errors import ungrouped
from loadtest.clients.messages import NO_WISHES, request
from loadtest.questions import bundled_questions
from loadtest.simulate.load import Steady
from loadtest.stack.errors import StackError
from loadtest.stack.service import Aggregator, ModelServer, without_kafka
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc

Latencies = npt.NDArray[np.float64]
_Found = TypeVar("_Found")

_START_S = 400.0
_FRONT_START_S = 120.0
_TIMEOUT_S = 120.0
_ALONE, _APART_S = 400, 0.002
"""Calls one by one, and seconds of rest before each."""


@dataclass(frozen=True, slots=True)
class Step:
    """An engine step, as the answers from it tell: its tokens and seconds."""

    tokens: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Calls:
    """When calls were due and how long each took, in seconds, and the steps that answered them."""

    due_s: Latencies
    latency_s: Latencies
    steps: tuple[Step, ...]


@contextmanager
def model_server(folder: Path, settings: Mapping[str, str]) -> Generator[tuple[ModelServer, Path]]:
    """Start a model server; yields it and the profile that it measured. Raises StackError.

    It has cores of its own, as its pod would: what shares them with the aggregator computes more slowly than its
    profile says. The caller is kept to the others until then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    profiles = folder / "profiles"
    for old in profiles.glob("*.json"):
        old.unlink()  # one that was measured beside other work would be taken again
    told = {"PROFILE__CACHE": str(profiles), **settings}
    server = ModelServer(folder / "modelserver.log", settings=told)
    server.launch()
    engines, others = apart(os.sched_getaffinity(0))
    os.sched_setaffinity(server.child.pid, engines)
    try:
        server.wait(_START_S)
        found = sorted(profiles.glob("*.json"))
        if not found:
            raise StackError(f"the model server kept no profile in {profiles}")
        os.sched_setaffinity(0, others)
        yield server, found[0]
    finally:
        os.sched_setaffinity(0, engines | others)
        server.stop()


@contextmanager
def running(folder: Path, settings: Mapping[str, str]) -> Generator[tuple[ModelServer, Aggregator, Path]]:
    """Start both; yields them and the profile that the model server measured. Raises StackError."""
    with (
        model_server(folder, settings) as (server, profile),
        aggregator(folder, server.model, server.address, {}) as front,
    ):
        yield server, front, profile


@contextmanager
def aggregator(folder: Path, model: str, server: str, settings: Mapping[str, str]) -> Generator[Aggregator]:
    """Start one without Kafka, on the cores of the caller. Raises StackError."""
    front = without_kafka(folder / "aggregator.log", model=model, servers=[server], settings=settings)
    front.launch()
    try:
        os.sched_setaffinity(front.child.pid, os.sched_getaffinity(0))
        front.wait(_FRONT_START_S)
        yield front
    finally:
        front.stop()


def apart(cores: Collection[int]) -> tuple[set[int], set[int]]:
    """The cores of the engine and those of all else: half of them each, or the same one twice."""
    ordered = sorted(cores)
    half = len(ordered) // 2
    return set(ordered[:half] or ordered), set(ordered[half:])


def alone_s(address: str) -> float:
    """Seconds of a call besides its step, from when it was due, the mean of calls one by one."""
    return _run(_alone_s(address))


def call(address: str, rate: float, seconds: float, seed: int) -> Calls:
    """Calls with one question each, Poisson. Raises StackError."""
    due_s = Steady(rate).draw(seconds, np.random.default_rng([seed, 1]))
    try:
        with ungrouped(grpc.aio.AioRpcError):
            return _run(_call(address, due_s))
    except grpc.aio.AioRpcError as error:
        raise StackError(f"a call failed: {error!r}") from error


def _run(work: Coroutine[Any, Any, _Found]) -> _Found:
    """As `asyncio.run`, with timers of microseconds: epoll's are late by up to a millisecond, callers are not."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(SelectSelector())) as runner:
        return runner.run(work)


def _texts(count: int) -> list[str]:
    questions = bundled_questions()
    return [questions[number % len(questions)] for number in range(count)]  # a number in each would make them longer


async def _alone_s(address: str) -> float:
    besides_s: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        stub = embedding_pb2_grpc.EmbeddingsStub(channel)
        await channel.channel_ready()
        for number, text in enumerate(_texts(_ALONE)):
            due_s = time.monotonic() + _APART_S
            await asyncio.sleep(_APART_S)
            answer = await stub.Embed(request([text], str(number), NO_WISHES), timeout=_TIMEOUT_S)
            besides_s.append(time.monotonic() - due_s - _step_s(answer))
    return fmean(besides_s[_ALONE // 4 :])


async def _call(address: str, due_s: Latencies) -> Calls:
    texts, latency_s = _texts(len(due_s)), np.zeros(len(due_s))
    steps: dict[str, Step] = {}
    async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as tasks:
        stub = embedding_pb2_grpc.EmbeddingsStub(channel)
        await channel.channel_ready()
        began_s = time.monotonic()

        async def one(number: int, at_s: float) -> None:
            answer = await stub.Embed(request([texts[number]], str(number), NO_WISHES), timeout=_TIMEOUT_S)
            # From when it was due: a client that falls behind must not hide what callers would wait.
            latency_s[number] = time.monotonic() - began_s - at_s
            before = steps.get(answer.batch_id)
            tokens = answer.embeddings[0].token_count + (before.tokens if before else 0)
            steps[answer.batch_id] = Step(tokens, _step_s(answer))

        for number, at_s in enumerate(due_s.tolist()):
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
            tasks.create_task(one(number, at_s))
    return Calls(due_s, latency_s, tuple(steps.values()))


def _step_s(answer: pb.EmbedResponse) -> float:
    return answer.timings.inference.ToNanoseconds() / 1e9
