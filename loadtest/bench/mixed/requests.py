"""Send embeddings and generations to an aggregator, and note how long each takes."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from loadtest.clients.pace import paced
from loadtest.processor import family_cpu_s
from loadtest.stack.errors import StackError

TIMEOUT_S = 300.0
_LOWEST_ID, _IDS = 10, 1000
_LOOK_S = 0.05
_PATIENCE = 20.0


class Task(StrEnum):
    """What a request asks for."""

    EMBED = "embed"
    GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; `new_tokens` of a generation."""

    task: Task
    token_ids: Sequence[int]
    new_tokens: int = 0

    def check(self, tokens: int) -> None:
        """Raises StackError if it got another number of new tokens."""
        if tokens != self.new_tokens:
            raise StackError(f"a generation has {tokens} tokens, not the {self.new_tokens} that it was asked for")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens: embeddings are lognormal around 20 and at most 200; prompts and new tokens are between two bounds."""

    prompt: tuple[int, int]
    new: tuple[int, int]

    def drawn(self, share: float, seed: int, side: str = "") -> Iterator[Asked]:
        """Requests of which a share generates: the same ones for the same seed, with other tokens for each side.

        Two sides may share servers, which would find what the other side has computed in their caches.
        """
        rng = np.random.default_rng([seed, round(100 * share)])
        ids = np.random.default_rng([seed, round(100 * share), *side.encode()])
        while True:
            task = Task.GENERATE if rng.random() < share else Task.EMBED
            yield self.one(task, rng, ids)

    def one(self, task: Task, rng: np.random.Generator, ids: np.random.Generator) -> Asked:
        """A request of a task."""
        if task is Task.EMBED:
            return Asked(task, _ids(int(np.clip(rng.lognormal(3.0, 0.6), 4, 200)), ids))
        prompt_tokens = int(rng.integers(*self.prompt, endpoint=True))
        return Asked(task, _ids(prompt_tokens, ids), int(rng.integers(*self.new, endpoint=True)))


@dataclass(slots=True)
class Heard:
    """What clients saw, in seconds. What ends outside of the measured time is left out.

    `cpu_s`: processor time of each server.
    """

    seconds: float = 0.0
    cpu_s: Sequence[float] = (0.0,)
    latency_s: dict[Task, list[float]] = field(default_factory=lambda: {task: [] for task in Task})
    first_s: list[float] = field(default_factory=list[float])
    between_s: list[float] = field(default_factory=list[float])

    def note_tokens(self, now_s: float, last_s: float, began_s: float) -> None:
        """A generation has new tokens; its last ones came at `last_s`, 0 if these are the first."""
        if last_s:
            self.between_s.append(now_s - last_s)
        else:
            self.first_s.append(now_s - began_s)

    @property
    def busiest_cpu_s(self) -> float:
        """Processor time of the server that used most."""
        return max(self.cpu_s)

    @property
    def answers(self) -> int:
        """Of both tasks."""
        return sum(map(len, self.latency_s.values()))

    @property
    def requests_per_s(self) -> float:
        return self.answers / self.seconds

    @property
    def per_cpu_s(self) -> float:
        """Requests of both tasks in a second of the busiest server's processor time: what other work changes little."""
        return self.answers / self.busiest_cpu_s

    def per_s(self, task: Task) -> float:
        """Requests of one task."""
        return len(self.latency_s[task]) / self.seconds

    def percentile_s(self, task: Task, percent: float) -> float:
        """Of the latencies; 0 without any."""
        return float(np.percentile(self.latency_s[task] or [0.0], percent))

    def between_percentile_s(self, percent: float) -> float:
        """Of the times between two tokens of one generation; 0 without any."""
        return float(np.percentile(self.between_s or [0.0], percent))


class Calls(ABC):
    """Connections to servers; what comes of calls is noted in `heard`."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.ended = False

    async def one_by_one(self, asked: Iterator[Asked]) -> None:
        while not self.ended and (one := next(asked, None)) is not None:
            await self.one(one)

    async def one(self, asked: Asked) -> None:
        """Send a request, and read its whole answer."""
        began_s = time.monotonic()
        await (self.embed(asked) if asked.task is Task.EMBED else self.generate(asked, began_s))
        self.heard.latency_s[asked.task].append(time.monotonic() - began_s)

    @abstractmethod
    async def embed(self, asked: Asked) -> None:
        """Wait for the vector. Raises StackError."""

    @abstractmethod
    async def generate(self, asked: Asked, began_s: float) -> None:
        """Wait for the tokens, and note when they come. Raises StackError."""


Connect = Callable[[], AbstractAsyncContextManager[Calls]]


class Clients:
    """Clients in one event loop, of servers with these process ids; `connect` is called for each run."""

    def __init__(self, connect: Connect, pids: Sequence[int]) -> None:
        self._connect = connect
        self._pids = pids

    def closed_loop(self, clients: int, asked: Iterator[Asked], warm_up_s: float, seconds: float) -> Heard:
        """Each client sends its next request when its last one is done. Raises StackError when one fails.

        Warm-up and measured time are processor time of the busiest server: other work makes them longer, not emptier.
        Neither ends before half as many requests as there are clients have been answered.
        """
        return asyncio.run(self._closed_loop(clients, asked, warm_up_s, seconds))

    def all_of(self, clients: int, asked: Iterable[Asked]) -> Heard:
        """The requests in their order, `clients` at a time, to their ends. Raises StackError when one fails."""
        return asyncio.run(self._all_of(clients, asked))

    def at_rate(self, per_s: float, asked: Iterator[Asked], warm_up_s: float, seconds: float) -> Heard:
        """Send at a fixed rate, without waiting for answers. Raises StackError when one fails."""
        return asyncio.run(self._at_rate(per_s, asked, warm_up_s, seconds))

    async def _closed_loop(self, clients: int, asked: Iterator[Asked], warm_up_s: float, seconds: float) -> Heard:
        async with self._connect() as calls, asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(calls.one_by_one(asked))
            await self._until_used(warm_up_s, calls, clients // 2)
            calls.heard, began_s, used_s = Heard(), time.monotonic(), self._cpu_s()
            await self._until_used(seconds, calls, clients // 2)
            heard, calls.heard = calls.heard, Heard()
            heard.seconds = time.monotonic() - began_s
            heard.cpu_s = self._used_s(used_s)
            calls.ended = True
        return heard

    async def _all_of(self, clients: int, asked: Iterable[Asked]) -> Heard:
        async with self._connect() as calls:
            began_s, used_s, left = time.monotonic(), self._cpu_s(), iter(asked)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(clients):
                    tasks.create_task(calls.one_by_one(left))
            calls.heard.seconds = time.monotonic() - began_s
            calls.heard.cpu_s = self._used_s(used_s)
            return calls.heard

    async def _at_rate(self, per_s: float, asked: Iterator[Asked], warm_up_s: float, seconds: float) -> Heard:
        async with self._connect() as calls:
            began_s, warm = time.monotonic(), False
            async with asyncio.TaskGroup() as tasks:
                async for numbers in paced(int(per_s * (warm_up_s + seconds)), per_s, 1):
                    if not warm and numbers.start >= per_s * warm_up_s:
                        warm, calls.heard, began_s = True, Heard(), time.monotonic()
                    tasks.create_task(calls.one(next(asked)))
            calls.heard.seconds = time.monotonic() - began_s
            return calls.heard

    async def _until_used(self, cpu_s: float, calls: Calls, least: int) -> None:
        """Run until the busiest server has used this much processor time and the answers are at least these many.

        It ends after 20 times as long at the latest.
        """
        used_s, until_s = self._cpu_s(), time.monotonic() + _PATIENCE * cpu_s
        while time.monotonic() < until_s and (  # noqa: ASYNC110 - a clock to look at
            max(self._used_s(used_s)) < cpu_s or calls.heard.answers < least
        ):
            await asyncio.sleep(_LOOK_S)

    def _cpu_s(self) -> list[float]:
        return [family_cpu_s(pid) for pid in self._pids]

    def _used_s(self, before_s: Sequence[float]) -> list[float]:
        return [now_s - then_s for now_s, then_s in zip(self._cpu_s(), before_s, strict=True)]


def _ids(count: int, rng: np.random.Generator) -> list[int]:
    ids: list[int] = rng.integers(_LOWEST_ID, _IDS, count).tolist()
    return ids
