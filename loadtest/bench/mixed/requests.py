"""Send embeddings and generations to an aggregator, and note how long each takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from tokenbatch_client import AsyncClient, TokenbatchError

from aggregator.errors import ungrouped
from loadtest.bench.processor import family_cpu_s
from loadtest.kit.traffic import paced
from loadtest.stack.errors import StackError

_TIMEOUT_S = 300.0
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
            if task is Task.EMBED:
                yield Asked(task, _ids(int(np.clip(rng.lognormal(3.0, 0.6), 4, 200)), ids))
            else:
                prompt_tokens = int(rng.integers(*self.prompt, endpoint=True))
                yield Asked(task, _ids(prompt_tokens, ids), int(rng.integers(*self.new, endpoint=True)))


@dataclass(slots=True)
class Heard:
    """What clients saw, in seconds. What ends outside of the measured time is left out.

    `cpu_s`: processor time of each server.
    """

    seconds: float = 0.0
    cpu_s: Sequence[float] = (0.0,)
    latency_s: dict[Task, list[float]] = field(default_factory=lambda: {task: [] for task in Task})
    between_s: list[float] = field(default_factory=list[float])

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
        return self.answers / max(self.cpu_s)

    def per_s(self, task: Task) -> float:
        """Requests of one task."""
        return len(self.latency_s[task]) / self.seconds

    def percentile_s(self, task: Task, percent: float) -> float:
        """Of the latencies; 0 without any."""
        return float(np.percentile(self.latency_s[task] or [0.0], percent))

    def between_percentile_s(self, percent: float) -> float:
        """Of the times between two tokens of one generation; 0 without any."""
        return float(np.percentile(self.between_s or [0.0], percent))


class Calls:
    """Calls to an aggregator; what comes of them is noted in `heard`. `models`: the name of the model for each task."""

    def __init__(self, client: AsyncClient, models: Mapping[Task, str]) -> None:
        self.heard = Heard()
        self.ended = False
        self._models = models
        self._client = client

    async def one_by_one(self, asked: Iterator[Asked]) -> None:
        while not self.ended and (one := next(asked, None)) is not None:
            await self.one(one)

    async def one(self, asked: Asked) -> None:
        """Send a request, and read its whole answer. Raises StackError."""
        began_s = time.monotonic()
        await (self._embed(asked) if asked.task is Task.EMBED else self._generate(asked))
        self.heard.latency_s[asked.task].append(time.monotonic() - began_s)

    async def _embed(self, asked: Asked) -> None:
        await self._client.embed([asked.token_ids], timeout_s=_TIMEOUT_S, model=self._models[Task.EMBED])

    async def _generate(self, asked: Asked) -> None:
        sampling = {"max_tokens": asked.new_tokens, "temperature": 0.0, "ignore_eos": True}
        model = self._models[Task.GENERATE]
        last_s, tokens = 0.0, 0
        async for response in self._client.stream(asked.token_ids, timeout_s=_TIMEOUT_S, model=model, **sampling):
            now_s = time.monotonic()
            if last_s:
                self.heard.between_s.append(now_s - last_s)
            last_s, tokens = now_s, response.usage.completion_tokens
        if tokens != asked.new_tokens:
            raise StackError(f"a generation has {tokens} tokens, not the {asked.new_tokens} that it was asked for")


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients in one event loop, of an aggregator before servers with these process ids.

    `models`: the name of the model for each task.
    """

    address: str
    models: Mapping[Task, str]
    pids: Sequence[int]

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Calls]:
        """Raises StackError when a call fails."""
        try:
            with ungrouped(TokenbatchError, StackError):
                async with AsyncClient(self.address, retry=False) as client:
                    yield Calls(client, self.models)
        except TokenbatchError as error:
            raise StackError(f"a request was not answered: {error}") from error

    def closed_loop(self, clients: int, asked: Iterator[Asked], warm_up_s: float, seconds: float) -> Heard:
        """Each client sends its next request when its last one is done. Raises StackError when one fails.

        Warm-up and measured time are processor time of the busiest server: other work makes them longer, not emptier.
        Neither ends before half as many requests as there are clients have been answered.
        """
        return asyncio.run(self._closed_loop(clients, asked, warm_up_s, seconds))

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
        return [family_cpu_s(pid) for pid in self.pids]

    def _used_s(self, before_s: Sequence[float]) -> list[float]:
        return [now_s - then_s for now_s, then_s in zip(self._cpu_s(), before_s, strict=True)]


def _ids(count: int, rng: np.random.Generator) -> list[int]:
    ids: list[int] = rng.integers(_LOWEST_ID, _IDS, count).tolist()
    return ids
