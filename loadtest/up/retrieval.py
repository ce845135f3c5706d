"""Iterative retrieval: embed a question, find its neighbours, generate the next query from them, and embed that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.table import Column, Table
from tokenbatch_client import AsyncClient, TokenbatchError

from loadtest.screen import bars
from loadtest.stack.errors import StackError

_NEIGHBOURS, _NEW_TOKENS, _SEED = 3, 16, 1
_ROUNDS = 2
_INDEX_BATCH = 32
_TINY = np.float32(1e-12)
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Loop:
    """One turn: the query, its neighbours, and the seconds from the query to the vector of the next one."""

    query: str
    neighbours: tuple[str, ...]
    next_query: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Retrieval:
    """One user's view: the loops from the question on, and all the seconds from the question's own embedding on."""

    loops: tuple[Loop, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """The retrievals of all users at once on one set of servers, and how long they took together."""

    servers: str
    retrievals: Sequence[Retrieval]
    seconds: float

    @property
    def loops_per_s(self) -> float:
        """Of all users together."""
        return sum(len(each.loops) for each in self.retrievals) / self.seconds


@dataclass(frozen=True, slots=True)
class Service:
    """An aggregator's address, and the names of the models that embed and generate there."""

    servers: str
    address: str
    embeds: str
    generates: str


def turns(first: Service, second: Service) -> list[Service]:
    """Both in each round, and the other one first in every second round: what drifts meets both alike."""
    rounds = [(first, second) if number % 2 == 0 else (second, first) for number in range(_ROUNDS)]
    return [service for pair in rounds for service in pair]


def retrieve(service: Service, questions: Sequence[str], documents: Sequence[str], loops: int) -> Run:
    """Each question by another user, all at once, among the documents. Raises StackError when a call fails."""
    with bars() as progress:
        bar = progress.add_task(f"loops on {service.servers}", total=len(questions) * loops)
        try:
            return asyncio.run(_retrieve(service, questions, documents, loops, lambda: progress.advance(bar)))
        except TokenbatchError as error:
            raise StackError(f"a call failed: {error}") from error


async def _retrieve(
    service: Service, questions: Sequence[str], documents: Sequence[str], loops: int, done: Callable[[], None]
) -> Run:
    async with AsyncClient(service.address, timeout_s=_TIMEOUT_S) as client:
        index = _Index(client, service, documents)
        await index.build()
        began_s = time.monotonic()
        found = await asyncio.gather(*(index.retrieve(question, loops, done) for question in questions))
        return Run(service.servers, found, time.monotonic() - began_s)


class _Index:
    """Documents by their vectors, and the models that work with them."""

    def __init__(self, client: AsyncClient, service: Service, documents: Sequence[str]) -> None:
        self._service = service
        self._client = client
        self._documents = documents
        self._vectors = np.zeros((0, 0), np.float32)

    async def build(self) -> None:
        count = len(self._documents)
        parts = (self._documents[at : at + _INDEX_BATCH] for at in range(0, count, _INDEX_BATCH))
        self._vectors = np.concatenate([await self._embed(part) for part in parts])

    async def retrieve(self, question: str, loops: int, looped: Callable[[], None]) -> Retrieval:
        """The loops of one user; `looped` is called after each."""
        began_s = last_s = time.monotonic()
        query, vector = question, (await self._embed([question]))[0]
        done: list[Loop] = []
        for _ in range(loops):
            nearest: list[int] = np.argsort(-(self._vectors @ vector))[:_NEIGHBOURS].tolist()
            neighbours = tuple(self._documents[place] for place in nearest)
            following = await self._next_query(query, neighbours)
            vector = (await self._embed([following]))[0]
            now_s = time.monotonic()
            done.append(Loop(query, neighbours, following, now_s - last_s))
            looped()
            query, last_s = following, now_s
        return Retrieval(tuple(done), last_s - began_s)

    async def _embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Unit vectors, float32 [texts, dimensions]."""
        vectors = (await self._client.embed(texts, model=self._service.embeds)).numpy()
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(norms, _TINY), np.float32)

    async def _next_query(self, query: str, neighbours: Sequence[str]) -> str:
        known = "\n".join(f"- {text}" for text in (*reversed(neighbours), query))
        text = await self._client.generate(
            f"Search queries:\n{known}\n-",
            timeout_s=_TIMEOUT_S,
            model=self._service.generates,
            max_tokens=_NEW_TOKENS,
            stop=["\n"],
            temperature=0.7,
            seed=_SEED,
        )
        return text.text.strip() or query


def loops_table(retrieval: Retrieval) -> Table:
    """One user's queries, each with what was found and what was asked next."""
    table = Table("query", "nearest among the questions", "next query", title="The loops of one user")
    for loop in retrieval.loops:
        table.add_row(loop.query, "\n".join(loop.neighbours), loop.next_query)
        table.add_section()
    return table


def runs_table(runs: Sequence[Run]) -> Table:
    """How long users waited for all of their loops, by servers."""
    title = f"{len(runs[0].retrievals)} users at once, {len(runs[0].retrievals[0].loops)} loops each"
    figures = (Column(name, justify="right") for name in ("loops/s", "of its runs", "end to end p50", "p99"))
    table = Table("servers", *figures, title=title)
    for servers in dict.fromkeys(run.servers for run in runs):
        own = [run for run in runs if run.servers == servers]
        rates = sorted(run.loops_per_s for run in own)
        times = np.percentile([each.seconds for run in own for each in run.retrievals], (50, 99)).tolist()
        spread = f"{rates[0]:.1f} to {rates[-1]:.1f}"
        table.add_row(servers, f"{sum(rates) / len(rates):.1f}", spread, *(f"{seconds:.1f} s" for seconds in times))
    return table
