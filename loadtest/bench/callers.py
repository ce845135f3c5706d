"""Callers in processes of their own; what they saw, and the cores that they and the servers used meanwhile.

A turn in which a thread of the callers is at its limit says nothing of the servers, and is marked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.asked import Asked, asked
from loadtest.bench.processor import LIMIT, Used, family_cpu_s, threads_s
from loadtest.kit.traffic import Seconds
from loadtest.stack.errors import StackError
from loadtest.stack.part import Part

_PROGRAM = "loadtest.bench.programs.caller"
_START_S = 0.2
_MOST = 4
"""Processes, on a machine of more cores: they saturate the servers that are measured beside others."""
_ANY = 1 << 30  # processes: no limit
Parts = Mapping[str, Sequence[Part]]
"""What is measured, by its kind: all of its processes."""


@dataclass(frozen=True, slots=True)
class Load:
    """How queries are sent: `callers` requests at a time, `per_call` queries in each, on a stream or by calls.

    `http`: by OpenAI's API. `due_s`: when each call is due, instead; `inputs`: what they hold, instead of questions.
    """

    callers: int = 1
    per_call: int = 1
    stream: bool = False
    http: bool = False
    due_s: Sequence[float] = ()
    inputs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn in figures; `server_cpu_us`: CPU time per query of all its processes, in µs.

    `used`: the cores of each process by its kind; those of the callers together, with the busiest thread of any.
    """

    queries_per_s: float
    latency_s: Seconds
    server_cpu_us: float = 0.0
    used: Mapping[str, Sequence[Used]] = field(default_factory=dict[str, Sequence[Used]])

    @property
    def p50_s(self) -> float:
        return float(np.percentile(self.latency_s, 50))

    @property
    def p99_s(self) -> float:
        return float(np.percentile(self.latency_s, 99))

    @property
    def marked(self) -> bool:
        """Whether the load generator set the pace."""
        return any(each.at_limit for each in self.used["callers"])

    @property
    def mark(self) -> str:
        return f" (MARKED: a thread of the callers is above {LIMIT} cores)" if self.marked else ""

    @property
    def said(self) -> str:
        return f"{self.queries_per_s:,.0f}/s{self.mark}"

    def busiest(self, kind: str) -> Used:
        """Of the processes of a kind the one with the busiest thread."""
        return max(self.used[kind], key=lambda each: each.busiest)

    def figures(self) -> dict[tuple[str, str], float]:
        """Each figure, by its name and unit."""
        found = {
            ("throughput", "query/s"): self.queries_per_s,
            ("p50", "ms"): 1e3 * self.p50_s,
            ("p99", "ms"): 1e3 * self.p99_s,
            ("server_cpu", "us/query"): self.server_cpu_us,
        }
        for kind, processes in self.used.items():
            for number, each in enumerate(processes, 1):
                name = kind if len(processes) == 1 else f"{kind}{number}"
                found |= {(f"{name}_cores", "cores"): each.cores, (f"{name}_thread", "cores"): each.busiest}
        return found


class Callers:
    """Processes of callers that have started."""

    def __init__(self, processes: Sequence[Asked]) -> None:
        self._processes = processes

    def turn(self, targets: Sequence[str], load: Load, count: int, parts: Parts, processes: int = _ANY) -> Turn:
        """Send this many unique questions, divided among `processes`, each of which asks one of the targets.

        Raises StackError when one is not answered.
        """
        number = 1 if load.stream else min(processes, len(load.due_s) or load.callers, len(self._processes))
        told = [run_of(targets[each % len(targets)], load, count, each, number) for each in range(number)]
        return self.turns(told, parts)[0]

    def turns(self, told: Sequence[Mapping[str, Any]], parts: Parts) -> tuple[Turn, Sequence[Seconds]]:
        """All that these processes see together, and the latencies of each. Raises StackError."""
        all_parts = [part for group in parts.values() for part in group]
        before, cpu_s = {part.pid: threads_s(part.pid) for part in all_parts}, _cpu_s(all_parts)
        began_s, at = time.monotonic(), time.time() + _START_S
        with ThreadPoolExecutor(len(told)) as pool:
            seen = list(pool.map(lambda process, one: process.ask({**one, "at": at}), self._processes, told))
        took_s = time.monotonic() - began_s - _START_S
        if failed := sum(each["failed"] for each in seen):
            raise StackError(f"{failed} queries were lost or failed: {seen[0]['errors']}")
        used: dict[str, Sequence[Used]] = {
            "callers": [Used(sum(each["cores"] for each in seen), max(each["busiest"] for each in seen))]
        }
        for kind, group in parts.items():
            used[kind] = [Used.between(before[part.pid], threads_s(part.pid), took_s) for part in group]
        answered = sum(each["answered"] for each in seen)
        span_s = max(each["ended"] for each in seen) - min(each["began"] for each in seen)
        latency_s = [np.array(each["latency_s"]) for each in seen]
        server_cpu_us = (_cpu_s(all_parts) - cpu_s) / answered * 1e6
        return Turn(answered / span_s, np.concatenate(latency_s), server_cpu_us, used), latency_s


def run_of(target: str, load: Load, count: int = 0, part: int = 0, parts: int = 1) -> dict[str, Any]:
    """The line of one process, which sends its part of the load."""
    return {
        "target": target, "http": load.http, "stream": load.stream, "per_call": load.per_call,
        "callers": max(1, load.callers // parts), "count": count, "part": (part, parts),
        "due_s": load.due_s[part::parts], "inputs": load.inputs[part::parts],
    }  # fmt: skip


def _cpu_s(parts: Sequence[Part]) -> float:
    return sum(family_cpu_s(part.pid) for part in parts)


@contextmanager
def callers(folder: Path, number: int = 0) -> Generator[Callers]:
    """Start `number` processes; 0: one a core, at most four."""
    number = number or min(_MOST, len(os.sched_getaffinity(0)))
    starting = [asked([_PROGRAM], folder / f"caller{each}.log") for each in range(number)]
    with ExitStack() as stack:
        with ThreadPoolExecutor(number) as pool:  # all at once: each takes seconds to import what it calls with
            started = [pool.submit(stack.enter_context, each) for each in starting]
            processes = [each.result() for each in started]
        yield Callers(processes)
