"""What callers notice of documents and of another tenant: latencies alone and beside, and documents a second."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import aiohttp
import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition
from typing_extensions import override

from loadtest.bench.callers import Callers, Load, Turn, callers, run_of
from loadtest.bench.figures import Figure
from loadtest.bench.peers import Peer, infinity, vllm_embeddings
from loadtest.bench.processor import LIMIT
from loadtest.bench.setting import PARTITIONS, Plan, Setting, create_topics, documents, fill, kafka, texts
from loadtest.bench.sides import OpenAI, Ours, dtype_of
from loadtest.bench.turns import Medians
from loadtest.kit.traffic import Seconds
from loadtest.screen import ERRORS
from loadtest.stack.errors import StackError
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.part import installed
from loadtest.stack.service import ModelServer, without_kafka

NAME = "isolation"
_FEW_PER_S = 20.0
_SHARE = 0.6
_SECONDS = 12.0
_SETTLE_S = 2.0
"""A load that has just begun is not measured yet."""
_CALLERS = 64
_CAPACITY_CALLS = 3_000
_FLOODING = 256
"""Calls in flight of the tenant that floods; four times what saturates a server here."""
_DOCUMENT_CALLS = 32
"""Documents in flight at a peer, which takes them by calls: twice what one of its steps holds."""
_DOCUMENTS = 30_000
_TEXTS = 1_000
"""Other ones than these differ by a number at the end."""
_VLLM_FIELDS = {"priority": 1, "truncate_prompt_tokens": 256}
"""Documents go after questions, whose priority is 0; its server refuses what is longer than MiniLM takes."""
_POLL_S = 0.1
_UNITS = {"kept": "share", "_cores": "cores", "_thread": "cores"}
"""Of figures, by the end of their names."""

_DOORS = {"grpc": False, "http": True}
"""Whether OpenAI's API is spoken there."""


class _Tested(ABC):
    """A server under test: its doors, and the two loads that may run beside its questions."""

    def __init__(self, name: str, side: Ours | OpenAI, http: str) -> None:
        """`http`: where it speaks OpenAI's embeddings API."""
        self.name = name
        self.side = side
        self.http = http

    @property
    def doors(self) -> Mapping[str, str]:
        """The address of each door."""
        return {"http": self.http}

    def ask(self, calling: Callers, per_s: float, seconds: float) -> tuple[Turn, Mapping[str, Seconds]]:
        """Questions at this rate through every door, which share it; the latencies of each. Raises StackError.

        A call of one door is due between two of the other one: at the same moment they would wait for each other.
        """
        questions, count = texts(int(per_s * seconds)), len(self.doors)
        told: list[Mapping[str, Any]] = []
        for number, (door, target) in enumerate(self.doors.items()):
            inputs = questions[number::count]
            due_s = (np.arange(number, len(questions), count) / per_s).tolist()
            told.append(run_of(target, Load(http=_DOORS[door], due_s=due_s, inputs=inputs)))
        turn, latency_s = calling.turns(told, self.side.parts)
        return turn, dict(zip(self.doors, latency_s, strict=True))

    def flood(self) -> _Callers:
        """Another tenant's questions, as many as go."""
        return _Callers(_Calls(self.http, _FLOODING, texts(_TEXTS), headers={"x-tenant": "flood"}))

    @contextmanager
    @abstractmethod
    def documents(self) -> Generator[None]:
        """Documents wait without end inside."""

    @abstractmethod
    def embedded(self) -> int:
        """How many documents are done."""


class _OursTested(_Tested):
    """Aggregator and model server; documents come through Kafka."""

    def __init__(
        self, side: Ours, http: str, setting: Setting, topics: tuple[str, str], documents: int, *, name: str = "ours"
    ) -> None:
        super().__init__(name, side, http)
        self._address = side.address
        self._setting = setting
        self._requests, self._replies = topics
        self._documents = documents

    def apart(self, name: str, asked: Ours, http: str) -> _OursTested:
        """The same documents beside questions to another aggregator."""
        topics = self._requests, self._replies
        return _OursTested(asked, http, self._setting, topics, self._documents, name=name)

    @property
    @override
    def doors(self) -> Mapping[str, str]:
        return {"grpc": self._address, "http": self.http}

    @override
    @contextmanager
    def documents(self) -> Generator[None]:
        asyncio.run(fill(self._setting.bootstrap, documents(self._documents), self._requests))
        yield
        if self.embedded() >= self._documents:
            raise StackError("all documents were embedded before the questions had ended: put more in")

    @override
    def embedded(self) -> int:
        async def end() -> int:
            partitions = [TopicPartition(self._replies, number) for number in range(PARTITIONS)]
            async with AIOKafkaConsumer(bootstrap_servers=self._setting.bootstrap) as consumer:
                ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
            return sum(ends.values())

        return asyncio.run(end())


class _PeerTested(_Tested):
    """A server of others; documents come by calls, some at a time."""

    def __init__(self, name: str, server: Peer, fields: Mapping[str, int]) -> None:
        """`fields`: of a call with a document."""
        super().__init__(name, OpenAI(server), server.url)
        self._calls = _Callers(_Calls(server.url, _DOCUMENT_CALLS, documents(_TEXTS), fields))

    @override
    @contextmanager
    def documents(self) -> Generator[None]:
        with self._calls:
            yield

    @override
    def embedded(self) -> int:
        done: int = self._calls.done.value
        return done


@dataclass(frozen=True, slots=True)
class _Calls:
    """What callers send: `number` calls at a time of one text each, with these fields and headers."""

    url: str
    number: int
    inputs: Sequence[str]
    fields: Mapping[str, int] = field(default_factory=dict[str, int])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class _Callers:
    """Callers in a process of their own, each with one call after the other until they are stopped."""

    def __init__(self, calls: _Calls) -> None:
        context = get_context("spawn")
        self.done = context.Value("l", 0)
        """Calls that were answered, since the start."""
        self._start: Callable[[], SpawnProcess] = lambda: context.Process(
            target=_call_on, args=(calls, self.done), daemon=True
        )

    def __enter__(self) -> None:
        before = self.done.value
        self._process = self._start()
        self._process.start()
        while self.done.value == before:
            if not self._process.is_alive():
                raise StackError("calls beside the questions failed")
            time.sleep(_POLL_S)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _call_on(calls: _Calls, done: Synchronized[int]) -> None:
    async def run() -> None:
        texts = (f"{calls.inputs[at % len(calls.inputs)]} {at}" for at in count())
        connector = aiohttp.TCPConnector(limit=calls.number)
        async with (
            aiohttp.ClientSession(connector=connector, headers=calls.headers, raise_for_status=True) as session,
            asyncio.TaskGroup() as tasks,
        ):

            async def call() -> None:
                for text in texts:
                    wanted = {"model": MODEL, "input": text, "encoding_format": "base64", **calls.fields}
                    async with session.post(calls.url, json=wanted) as response:
                        await response.read()
                    done.value += 1

            for _ in range(calls.number):
                tasks.create_task(call())

    asyncio.run(run())


def measure(plan: Plan) -> list[Figure]:
    """Ours, then each peer, in the same run; every phase of a side as often as there are repeats."""
    with callers(plan.folder) as calling:
        return _measured(plan, calling)


def _measured(plan: Plan, calling: Callers) -> list[Figure]:
    found: dict[str, list[float]] = {}
    with kafka(plan) as setting:
        server = ModelServer(plan.folder / "modelserver.log", settings={"PROFILE__CACHE": str(plan.profiles)})
        with server:
            dtype = dtype_of(server)
            for _ in range(plan.repeats):
                for opened in (_ours, _ours_apart):
                    with opened(setting, server, dtype) as ours:
                        _turn(ours, calling, plan, found)
    peers = [("vllm", vllm_embeddings(plan.folder, dtype, priorities=True), _VLLM_FIELDS)]
    if installed("peers-infinity"):
        peers.append(("infinity", infinity(plan.folder, dtype), {}))
    for name, peer, fields in peers:
        with peer:
            for _ in range(plan.repeats):
                _turn(_PeerTested(name, peer, fields), calling, plan, found)
    return figures(found, plan.repeats, f"MiniLM {dtype}, phases of {plan.turn_share * _SECONDS:g} s")


@contextmanager
def _ours(setting: Setting, server: ModelServer, dtype: str) -> Generator[_OursTested]:
    """A new aggregator, with topics of its own."""
    replies = setting.replies_topic()
    requests = f"{replies}.requests"
    asyncio.run(create_topics(setting.bootstrap, [requests]))
    told = {"KAFKA__TOPICS": f'[{{"name": "{requests}", "priority": "background"}}]'}
    with setting.aggregator([server.address], replies, told) as aggregator:
        http = f"http://{aggregator.http_address}/v1/embeddings"
        documents = max(500, round(setting.plan.turn_share * _DOCUMENTS))
        yield _OursTested(Ours(aggregator, server, dtype), http, setting, (requests, replies), documents)


@contextmanager
def _ours_apart(setting: Setting, server: ModelServer, dtype: str) -> Generator[_Tested]:
    """Two new aggregators of one model server: one is asked, the other one embeds the documents."""
    asked = without_kafka(setting.plan.folder / "asked.log", model=MODEL, servers=[server.address])
    with _ours(setting, server, dtype) as ours, asked:
        http = f"http://{asked.http_address}/v1/embeddings"
        yield ours.apart("ours_apart", Ours(asked, server, dtype), http)


def _turn(tested: _Tested, calling: Callers, plan: Plan, found: dict[str, list[float]]) -> None:
    """All phases of one side. Raises StackError when a call fails."""

    def note(figure: str, value: float) -> None:
        found.setdefault(f"{tested.name}_{figure}", []).append(value)
        ERRORS.print(f"{NAME}: {tested.name}_{figure} {value:.4g}")

    def cores(phase: str, turn: Turn) -> None:
        """Note those of each process, and of its busiest thread."""
        for (figure, unit), value in turn.figures().items():
            if unit == "cores":
                note(f"{phase}_{figure}", value)

    seconds = plan.turn_share * _SECONDS
    calls = max(_CALLERS, round(plan.turn_share * _CAPACITY_CALLS))
    tested.side.turn(calling, Load(_CALLERS), calls // 4)
    turn = tested.side.turn(calling, Load(_CALLERS), calls)
    capacity_per_s = turn.queries_per_s
    note("capacity", capacity_per_s)
    cores("capacity", turn)
    rates = {"few": _FEW_PER_S, "many": _SHARE * capacity_per_s}

    def questions(phase: str, load: str) -> float:
        """Note their latencies; how many documents a second were embedded meanwhile."""
        tested.ask(calling, rates[load], seconds / 6)
        before, began_s = tested.embedded(), time.monotonic()
        turn, doors = tested.ask(calling, rates[load], seconds)
        documents_per_s = (tested.embedded() - before) / (time.monotonic() - began_s)
        cores(f"{load}_{phase}", turn)
        for door, latency_s in doors.items():
            for percent in (50, 99):
                note(f"{load}_{door}_p{percent}_{phase}", float(np.percentile(latency_s, percent)) * 1e3)
        return documents_per_s

    for load in rates:
        questions("alone", load)
    with tested.flood():
        questions("beside_flood", "few")
    with tested.documents():
        time.sleep(plan.turn_share * _SETTLE_S)
        before, began_s = tested.embedded(), time.monotonic()
        time.sleep(seconds)
        alone_per_s = (tested.embedded() - before) / (time.monotonic() - began_s)
        note("documents_alone", alone_per_s)
        for load, per_s in rates.items():
            note(f"documents_beside_{load}", beside_per_s := questions("beside_documents", load))
            note(f"{load}_work_kept", beside_per_s / alone_per_s + per_s / capacity_per_s)


def figures(found: Mapping[str, Sequence[float]], repeats: int, notes: str) -> list[Figure]:
    """Medians; of each load and door the ratio of p99 beside and alone, turn by turn."""
    medians = Medians(NAME, repeats, notes, _bounds(found))
    shown: list[Figure] = []
    for name, values in found.items():
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "1/s")
        unit = "ms" if "_p50_" in name or "_p99_" in name else unit
        shown.append(medians.of(name, unit, values))
        alone, _, beside = name.rpartition("_beside_")
        if "_p99_beside_" in name:
            shown.append(medians.ratio(f"{alone}_{beside}_over_alone", values, found[f"{alone}_alone"]))
    return shown


def _bounds(found: Mapping[str, Sequence[float]]) -> dict[str, str]:
    ours = [name for name in found if name.startswith("ours_")]
    ratios = {name.replace("_beside_", "_") + "_over_alone": "≤ 2" for name in ours if "_p99_beside_" in name}
    pace = {name: f"≤ {LIMIT}" for name in found if name.endswith("callers_thread")}
    return {**ratios, **pace, **{name: "≥ 0.9" for name in ours if name.endswith("kept")}}
