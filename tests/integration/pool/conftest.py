"""A pool of real model servers, an aggregator over them without Kafka, and callers that never pause."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from loadtest.stack.part import Program
from loadtest.stack.ports import free_ports
from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator, without_kafka
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.support.processes import NewServer
from tests.support.until import until

CALLERS = 16
DEADLINE_S = 20.0
NewSickServer = Callable[..., "SickServer"]
Pool = Callable[..., "Watched"]


class SickServer(Program):
    """sick_modelserver; at SIGUSR1 it falls ill, at SIGUSR2 it is well again."""

    def __init__(self, log: Path, *arguments: str) -> None:
        (port,) = free_ports(1)
        self.address = f"localhost:{port}"
        super().__init__("tests.integration.pool.sick_modelserver", ["--port", str(port), *arguments], log, port)


@dataclass(eq=False)
class Traffic:
    """What became of the calls so far; none may fail, unless the test says so."""

    codes: Counter[grpc.StatusCode] = field(default_factory=Counter[grpc.StatusCode])
    details: set[str] = field(default_factory=set[str])

    @property
    def answered(self) -> int:
        return self.codes[grpc.StatusCode.OK]

    def check(self) -> None:
        """Nobody saw an error."""
        assert set(self.codes) == {grpc.StatusCode.OK}, (self.codes, self.details)


@asynccontextmanager
async def traffic(address: str, model: str = "", callers: int = CALLERS) -> AsyncGenerator[Traffic]:
    """Callers that each ask one new question after the other, until the block ends."""
    seen = Traffic()
    numbers = count()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.EmbeddingsStub(channel)
        ended = asyncio.Event()

        async def call_on() -> None:
            while not ended.is_set():
                request = pb.EmbedRequest(model=model, inputs=[pb.Input(text=f"question {next(numbers)}")])
                try:
                    answer = await stub.Embed(request, timeout=DEADLINE_S)
                except grpc.aio.AioRpcError as error:
                    seen.codes[error.code()] += 1
                    seen.details.add(error.details() or "")
                    await asyncio.sleep(0.05)
                else:
                    assert len(answer.embeddings[0].embedding) == 384 * 4
                    seen.codes[grpc.StatusCode.OK] += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(callers):
                tasks.create_task(call_on())
            try:
                await until(lambda: sum(seen.codes.values()) >= callers)
                yield seen
            finally:
                ended.set()


async def more(seen: Traffic, calls: int = 100, within_s: float = 30.0) -> None:
    """Wait until so many further calls were answered."""
    wanted = seen.answered + calls
    await until(lambda: seen.answered >= wanted, within_s)


@dataclass(eq=False)
class Watched:
    """An aggregator, and what it has logged that no test has asked for yet."""

    process: Aggregator
    _untold: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    @property
    def address(self) -> str:
        return self.process.address

    async def told(self, event: str, address: str, within_s: float = 30.0) -> str:
        """Wait until it logs this of the server at `address`; returns the reason it gives, if any."""
        found: Mapping[str, Any] | None = None

        def look() -> bool:
            nonlocal found
            self._untold.extend(self.process.news())
            matching = (each for each in self._untold if (each["event"], each.get("address")) == (event, address))
            found = next(matching, None)
            return found is not None

        await until(look, within_s)
        assert found is not None
        self._untold.remove(found)
        return str(found.get("reason", ""))


@pytest.fixture
def new_server(new_server: NewServer) -> NewServer:
    """Steps take 50 ms, unless a test says otherwise; a batch is given up after more than a second then."""
    return partial(new_server, SYNTHETIC__FIXED_S="0.05")


@pytest.fixture
def new_sick_server(tmp_path: Path) -> Iterator[NewSickServer]:
    """Make sick_modelserver processes; all end with the test."""
    made: list[SickServer] = []

    def make(illness: str, *further: str) -> SickServer:
        made.append(SickServer(tmp_path / f"sick-{len(made)}.log", "--illness", illness, *further))
        return made[-1]

    yield make
    for server in made:
        server.kill()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Start an aggregator over the servers at these addresses, or over these models; `further` are settings."""
    started: list[Aggregator] = []

    def start(*addresses: str, models: Sequence[dict[str, object]] | None = None, **further: str) -> Watched:
        settings = {"BATCHING__COALESCE": "true", **further}
        if models is not None:
            settings["MODELS"] = json.dumps(models)
        log = tmp_path / f"aggregator-{len(started)}.log"
        started.append(without_kafka(log, model=DEFAULT_MODEL_NAME, servers=addresses, settings=settings))
        started[-1].start()
        return Watched(started[-1])

    yield start
    for aggregator in started:
        aggregator.kill()
