"""The two sides of P7 and P8: a model behind aggregator and model server, and behind vLLM's own server."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import override

from loadtest.lab.bench.generation.streams import Asked, Heard, over_grpc, over_http
from loadtest.lab.bench.peers import Peer, vllm_texts
from loadtest.lab.bench.setting import Plan
from loadtest.lab.bench.sides import dtype_of
from loadtest.lab.processor import cpu_s, family_cpu_s
from loadtest.questions import bundled_questions
from loadtest.stack.part import Part
from loadtest.stack.service import Aggregator, ModelServer, without_kafka

_TIMEOUT_S = 300.0
_NO_TARGET_S = "10"
"""Between two tokens: vLLM's server has no such target, so ours gets none that would bound a step."""


@dataclass(frozen=True, slots=True)
class Load:
    """This many callers at a time, each of whose texts has `tokens` at least and thrice as many at most."""

    callers: int
    texts: int
    tokens: int
    whole: bool = False

    def asked(self, seed: int) -> list[Asked]:
        """Prompts that differ, and tokens for each."""
        rng = np.random.default_rng(seed)
        questions = bundled_questions()
        lengths = rng.integers(self.tokens, 3 * self.tokens, self.texts, endpoint=True)
        first = int(rng.integers(len(questions)))
        return [Asked(questions[(first + place) % len(questions)], int(each)) for place, each in enumerate(lengths)]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn in figures: seconds; CPU time in µs per token, of all server processes, of the front one, of callers."""

    tokens_per_s: float
    first_p50_s: float
    first_p99_s: float
    between_p50_s: float
    between_p99_s: float
    server_cpu_us: float
    front_cpu_us: float
    client_cpu_us: float


class Side(ABC):
    """A server that generates, with all its processes; the first of the parts is what callers speak to."""

    def __init__(self, *parts: Part) -> None:
        self._parts = parts

    def turn(self, load: Load, seed: int) -> Turn:
        """Have the texts of a load generated. Raises StackError when one is not."""
        asked = load.asked(seed)
        before_s, front_before_s, client_before_s = self._cpu_s(), self._front_cpu_s(), time.process_time()
        began_s = time.monotonic()
        heard = asyncio.run(self._send(asked, load))
        took_s = time.monotonic() - began_s
        client_s = time.process_time() - client_before_s
        each_us = 1e6 / heard.tokens
        between_s = heard.between_s or [0.0]
        return Turn(
            tokens_per_s=heard.tokens / took_s,
            first_p50_s=float(np.percentile(heard.first_s, 50)),
            first_p99_s=float(np.percentile(heard.first_s, 99)),
            between_p50_s=float(np.percentile(between_s, 50)),
            between_p99_s=float(np.percentile(between_s, 99)),
            server_cpu_us=(self._cpu_s() - before_s) * each_us,
            front_cpu_us=(self._front_cpu_s() - front_before_s) * each_us,
            client_cpu_us=client_s * each_us,
        )

    @abstractmethod
    async def _send(self, asked: Sequence[Asked], load: Load) -> Heard:
        """Ask for them all."""

    def _cpu_s(self) -> float:
        return sum(family_cpu_s(part.pid) for part in self._parts)

    def _front_cpu_s(self) -> float:
        return cpu_s(self._parts[0].pid)


class Ours(Side):
    """Aggregator and model server."""

    def __init__(self, aggregator: Aggregator, server: ModelServer) -> None:
        super().__init__(aggregator, server)
        self._address = aggregator.address

    @override
    async def _send(self, asked: Sequence[Asked], load: Load) -> Heard:
        return await over_grpc(self._address, asked, load.callers, whole=load.whole)


class Theirs(Side):
    """vLLM's own server."""

    def __init__(self, server: Peer, model: str) -> None:
        super().__init__(server)
        self._url, self._model = server.url, model

    @override
    async def _send(self, asked: Sequence[Asked], load: Load) -> Heard:
        return await over_http(self._url, self._model, asked, load.callers, whole=load.whole)


@contextmanager
def both_sides(plan: Plan, model: Path, threads: int) -> Generator[tuple[Ours, Theirs, str]]:
    """Start one after the other, both with this many computing threads; returns their dtype."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    told = {"GENERATION__TIME_PER_OUTPUT_TOKEN_S": _NO_TARGET_S}
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    log_file = plan.folder / "modelserver.log"
    server = ModelServer(log_file, model_path=str(model), settings=told, environment=environment)
    with server:
        dtype = dtype_of(server)
        vllm = vllm_texts(plan.folder, model, dtype, threads)
        aggregator = without_kafka(plan.folder / "aggregator.log", model=model.name, servers=[server.address])
        with vllm, aggregator:
            yield Ours(aggregator, server), Theirs(vllm, model.name), dtype
