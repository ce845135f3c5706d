"""`rerank`: callers who have documents ranked, beside vLLM's own server; and questions on another server meanwhile.

The ranker is made of MiniLM (`loadtest/texts/minilm_ranker.py`), and has its size. Documents are a few questions each.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count

import aiohttp
import numpy as np
import uvloop

from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.peers import vllm_ranker
from loadtest.lab.bench.setting import Plan, texts
from loadtest.lab.bench.sides import awake, dtype_of, paused
from loadtest.lab.bench.turns import Medians, in_turns
from loadtest.screen import ERRORS
from loadtest.stack.errors import StackError
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.service import Aggregator, ModelServer, without_kafka
from loadtest.texts.minilm_ranker import minilm_ranker

NAME = "rerank"
_CALLERS, _DOCUMENTS, _TURN_S = 64, 20, 30.0
_QUESTIONS_A_DOCUMENT = 5
"""Some 60 tokens."""
_BESIDE_PER_S = 5.0
_TIMEOUT_S = 300.0
_BOUNDS = {"over_vllm": "≥ 1.5", "p99_over_vllm": "≤ 1.0"}


@dataclass(slots=True)
class _Turn:
    """Seconds that answered requests and questions took, and for how long requests were sent."""

    requests_s: list[float] = field(default_factory=list[float])
    questions_s: list[float] = field(default_factory=list[float])
    duration_s: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.requests_s) / self.duration_s

    def __str__(self) -> str:
        return f"{self.rate:.2f}/s"


def measure(plan: Plan) -> list[Figure]:
    """Requests a second and latencies of each side in turns; then questions alone, and beside our rankings."""
    folder = minilm_ranker(on_progress=ERRORS.print)
    seconds = _TURN_S * plan.turn_share
    ranks = ModelServer(
        plan.folder / "ranker.log",
        model_path=str(folder),
        settings={"MODEL__TASK": "rank", "PROFILE__CACHE": str(plan.profiles)},
    )
    embeds = ModelServer(plan.folder / "modelserver.log", settings={"PROFILE__CACHE": str(plan.profiles)})
    with ExitStack() as running:
        running.enter_context(ranks)
        dtype = dtype_of(ranks)
        vllm = vllm_ranker(plan.folder, folder, ranks.model, dtype)
        running.enter_context(vllm)
        running.enter_context(paused(vllm))
        running.enter_context(embeds)
        models = [{"name": server.model, "servers": [server.address]} for server in (embeds, ranks)]
        aggregator = without_kafka(
            plan.folder / "aggregator.log",
            model=MODEL,
            servers=[embeds.address],
            settings={"MODELS": json.dumps(models)},
        )
        running.enter_context(aggregator)

        def ours(_: int) -> _Turn:
            return uvloop.run(_send(f"http://{aggregator.http_address}/v1/rerank", ranks.model, seconds))

        def theirs(_: int) -> _Turn:
            with awake(vllm):
                return uvloop.run(_send(vllm.url, ranks.model, seconds))

        sides: dict[str, Callable[[int], _Turn]] = {"ours": ours, "vllm": theirs}
        found = in_turns(NAME, plan.repeats, sides, str)
        alone, beside = (
            uvloop.run(_beside(aggregator, ranks.model, seconds, callers=callers)) for callers in (0, _CALLERS)
        )
    notes = f"{_CALLERS} callers, {_DOCUMENTS} documents, {_BESIDE_PER_S:g} questions a second beside, MiniLM {dtype}"
    return _figures(found, alone, beside, Medians(NAME, plan.repeats, notes, _BOUNDS))


def _figures(found: dict[str, list[_Turn]], alone: _Turn, beside: _Turn, medians: Medians) -> list[Figure]:
    figures: list[Figure] = []
    for name, turns in found.items():
        figures.append(medians.of(f"{name}_throughput", "request/s", [turn.rate for turn in turns]))
        figures += [
            medians.of(f"{name}_p{part}", "ms", [_ms(turn.requests_s, part) for turn in turns]) for part in (50, 99)
        ]
    ours, vllm = found["ours"], found["vllm"]
    figures.append(medians.ratio("over_vllm", [turn.rate for turn in ours], [turn.rate for turn in vllm]))
    ours_p99, vllm_p99 = ([_ms(turn.requests_s, 99) for turn in turns] for turns in (ours, vllm))
    figures.append(medians.ratio("p99_over_vllm", ours_p99, vllm_p99))
    for name, turn in (("alone", alone), ("beside", beside)):
        figures += [medians.of(f"questions_{name}_p{part}", "ms", [_ms(turn.questions_s, part)]) for part in (50, 99)]
    return figures


def _ms(seconds: Sequence[float], part: int) -> float:
    return 1e3 * float(np.percentile(seconds, part))


def _bodies(model: str) -> Sequence[bytes]:
    """Requests whose documents are all different, some hundred."""
    asked = texts(8000)
    documents = [" ".join(asked[at : at + _QUESTIONS_A_DOCUMENT]) for at in range(0, len(asked), _QUESTIONS_A_DOCUMENT)]
    return [
        json.dumps({"model": model, "query": asked[at], "documents": documents[at : at + _DOCUMENTS]}).encode()
        for at in range(0, len(documents) - _DOCUMENTS, _DOCUMENTS)
    ]


async def _send(url: str, model: str, seconds: float, callers: int = _CALLERS, turn: _Turn | None = None) -> _Turn:
    """Callers one request after the other, until the time is over; the last ones are waited for. Raises StackError."""
    turn, bodies, numbers = turn or _Turn(), _bodies(model), count()
    began_s = time.monotonic()

    async def caller(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < began_s + seconds:
            turn.requests_s.append(await _post(session, url, bodies[next(numbers) % len(bodies)]))

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_TIMEOUT_S)) as session:
        await asyncio.gather(*(caller(session) for _ in range(callers)))
    turn.duration_s = time.monotonic() - began_s
    return turn


async def _beside(aggregator: Aggregator, model: str, seconds: float, *, callers: int) -> _Turn:
    """Questions one after the other at even times, while callers have documents ranked."""
    turn = _Turn()
    base = f"http://{aggregator.http_address}"
    asked = [json.dumps({"model": MODEL, "input": text}).encode() for text in texts(1000)]

    async def ask() -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            for number in range(round(seconds * _BESIDE_PER_S)):
                tasks.create_task(question(session, asked[number]))
                await asyncio.sleep(1.0 / _BESIDE_PER_S)

    async def question(session: aiohttp.ClientSession, body: bytes) -> None:
        turn.questions_s.append(await _post(session, f"{base}/v1/embeddings", body))

    await asyncio.gather(_send(f"{base}/v1/rerank", model, seconds, callers, turn), ask())
    return turn


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> float:
    began_s = time.monotonic()
    async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
        answer = await response.read()
        if not response.ok:
            raise StackError(f"{url} answered {response.status}: {answer[:300]!r}")
    return time.monotonic() - began_s
