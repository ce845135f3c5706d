"""What a query costs the aggregator as more of them wait, on more partitions, before more model servers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import psutil

from loadtest.bench.figures import Figure
from loadtest.bench.processor import cpu_s
from loadtest.bench.setting import Plan, Setting, kafka, mean_tokens, texts
from loadtest.kit.prometheus import totals
from loadtest.screen import ERRORS
from loadtest.stack.service import Aggregator

NAME = "growth"
QUEUED = (1_000, 10_000, 100_000, 1_000_000)
PARTITIONS = (1, 10, 100)
SERVERS = (1, 8, 64)
_FEWEST = 200_000
"""Queries of a run, unless more of them are to wait."""
_SAMPLE = 10_000
_SHARE = 0.75
"""Of what a model may hold, at which queries of the default class from Kafka stop."""
_ALMOST = 0.9
"""Of the queue waits; the rest is at the model server."""
_HELD_S = 0.5
"""What the model server takes for a step until the queue is as long as wanted."""
_STEP_S = 0.02
_IDLE_S = 3.0
_LOOK_S = 0.25
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """One aggregator: CPU time of a query in µs; how many waited when most did, and the bytes that it took then."""

    cpu_us: float
    queued: float = 0.0
    memory_bytes: int = 0


def measure(plan: Plan) -> list[Figure]:
    """Each once, by a fresh process that works a topic off from its start to its end."""
    tokens = mean_tokens(texts(_SAMPLE))
    with kafka(plan) as setting:
        bench = _Bench(setting, tokens)
        for wanted in QUEUED:
            bench.queue(wanted)
        for number in PARTITIONS:
            bench.partitions(number)
        for number in SERVERS:
            bench.servers(number)
    text_bytes = float(np.mean([len(text.encode()) for text in texts(_SAMPLE)]))
    return figures(bench.queues, bench.by_partitions, bench.by_servers, text_bytes)


class _Bench:
    def __init__(self, setting: Setting, tokens: float) -> None:
        self.queues: dict[int, Run] = {}
        self.by_partitions: dict[int, Run] = {}
        self.by_servers: dict[int, Run] = {}
        self._setting = setting
        self._tokens = tokens
        setting.fill(0, "empty")
        setting.fill(_FEWEST, "some")
        self._start_cpu_s = self._start()

    def queue(self, wanted: int) -> None:
        """Let `wanted` queries wait, then process them."""
        topic, queries = ("some", _FEWEST) if wanted <= _FEWEST else ("many", wanted)
        if topic == "many":
            self._setting.fill(wanted, topic)
        settings = {
            "BATCHING__MAX_HELD_TOKENS": str(round(wanted * self._tokens / _SHARE)),
            "CONSTANTS": f'{{"aggregator.settings.aggregator:ClientSettings.max_commit_span": {2 * queries}}}',
        }
        with self._setting.instant_modelservers(step_s=_HELD_S) as servers:
            replies = self._setting.replies_topic()
            aggregator = self._setting.aggregator(servers.addresses, replies, settings, topic)
            with aggregator:
                queued = self._wait(aggregator, _ALMOST * min(wanted, queries))
                memory_bytes = psutil.Process(aggregator.pid).memory_info().rss
                servers.hurry()
                self._setting.wait(aggregator, replies, queries)
                self.queues[wanted] = Run(self._cpu_us(aggregator, queries), queued, memory_bytes)
        ERRORS.print(f"{NAME}: {wanted} queued: {self.queues[wanted]}")

    def partitions(self, number: int) -> None:
        """A topic of `number` partitions."""
        topic = f"partitions.{number}"
        self._setting.fill(_FEWEST, topic, partitions=number)
        self.by_partitions[number] = self._worked_off(topic, 1)
        ERRORS.print(f"{NAME}: {number} partitions: {self.by_partitions[number]}")

    def servers(self, number: int) -> None:
        """`number` servers, which are as fast together as one."""
        self.by_servers[number] = self._worked_off("some", number)
        ERRORS.print(f"{NAME}: {number} model servers: {self.by_servers[number]}")

    def _start(self) -> float:
        """What a start costs, of CPU time."""
        with (
            self._setting.instant_modelservers() as servers,
            self._setting.aggregator(servers.addresses, self._setting.replies_topic(), topic="empty") as aggregator,
        ):
            time.sleep(_IDLE_S)
            return cpu_s(aggregator.pid)

    def _worked_off(self, topic: str, number: int) -> Run:
        replies = self._setting.replies_topic()
        with (
            self._setting.instant_modelservers(number, number * _STEP_S) as servers,
            self._setting.aggregator(servers.addresses, replies, topic=topic) as aggregator,
        ):
            self._setting.wait(aggregator, replies, _FEWEST)
            return Run(self._cpu_us(aggregator, _FEWEST))

    def _wait(self, aggregator: Aggregator, wanted: float) -> float:
        until_s = time.monotonic() + _TIMEOUT_S
        queued = 0.0
        while queued < wanted:
            if time.monotonic() > until_s:
                raise TimeoutError(f"{queued:.0f} queries wait, not {wanted:.0f}")
            time.sleep(_LOOK_S)
            queued = totals(aggregator.metrics_address)["tokenbatch_queue_tokens"] / self._tokens
        return queued

    def _cpu_us(self, aggregator: Aggregator, queries: int) -> float:
        return (cpu_s(aggregator.pid) - self._start_cpu_s) / queries * 1e6


def figures(
    queues: Mapping[int, Run], by_partitions: Mapping[int, Run], by_servers: Mapping[int, Run], text_bytes: float
) -> list[Figure]:
    """CPU time of each, and the most over the first; memory by the difference of the longest queue and the shortest."""
    short, *_, long = queues.values()
    each = (long.memory_bytes - short.memory_bytes) / (long.queued - short.queued) - text_bytes
    notes = f"instant model servers, all threads; ratios: the most over the first; a text of {text_bytes:.0f} bytes"
    found: list[Figure] = []
    for what, runs in (("queued", queues), ("partitions", by_partitions), ("servers", by_servers)):
        found += [
            Figure(NAME, f"cpu_{number}_{what}", run.cpu_us, "us/query", 1, notes) for number, run in runs.items()
        ]
    for what, runs, bound in (
        ("queued", queues, "≤ 1.1"),
        ("partitions", by_partitions, ""),
        ("servers", by_servers, ""),
    ):
        costs = [run.cpu_us for run in runs.values()]
        found.append(Figure(NAME, f"cpu_by_{what}", max(costs) / costs[0], "ratio", 1, notes, bound))
    return [*found, Figure(NAME, "memory_per_queued_query", each, "byte", 1, notes, "≤ 1024")]
