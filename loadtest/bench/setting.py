"""What benchmarks run in: a Kafka with a backlog, model servers that answer at once, processes to measure."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from typing_extensions import override

from loadtest.bench.backlog import REQUESTS, create_topics, fill
from loadtest.bench.instant_modelserver import MODEL
from loadtest.stack.child import Child
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.part import Part
from loadtest.stack.ports import free_ports
from loadtest.stack.service import Aggregator


class Program(Part):
    """`python -m MODULE ARGUMENTS`; ready when `port` is open, at once without one."""

    def __init__(self, module: str, arguments: Sequence[str], log_file: Path, port: int | None = None) -> None:
        super().__init__(module, f"Its log is {log_file}.")
        self._command = [sys.executable, "-m", module, *arguments]
        self._log_file = log_file
        self._port = port

    @override
    def _spawn(self) -> Child:
        return Child(self.name, self._command, self._log_file)

    @override
    def _answers(self) -> bool:
        if self._port is None:
            return True
        try:
            socket.create_connection(("localhost", self._port), timeout=1).close()
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Plan:
    """What every benchmark is asked for: so many queries and repeats, batches of so many tokens; a folder for logs."""

    folder: Path
    queries: int
    repeats: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A Kafka at `bootstrap`, whose request topic holds the plan's unique queries."""

    plan: Plan
    bootstrap: str
    _runs: count[int]

    def replies_topic(self) -> str:
        """A new topic, and with it a new consumer group: what reads the requests starts at their beginning."""
        name = f"bench.replies.{next(self._runs)}"
        asyncio.run(create_topics(self.bootstrap, [name]))
        return name

    @contextmanager
    def instant_modelserver(self, step_s: float = 0.0) -> Generator[str]:
        """The address of a model server that answers at once, or after `step_s`."""
        (port,) = free_ports(1)
        arguments = ["--port", str(port), "--token-budget", str(self.plan.token_budget), "--step-s", str(step_s)]
        with Program(
            "loadtest.bench.instant_modelserver", arguments, self.plan.folder / "instant_modelserver.log", port
        ):
            yield f"localhost:{port}"

    def aggregator(self, server: str, replies: str, settings: Mapping[str, str] | None = None) -> Aggregator:
        """One that reads the backlog from its beginning, coalescing nothing; not started yet."""
        return Aggregator(
            self.plan.folder / "aggregator.log",
            kafka=self.bootstrap,
            model=MODEL,
            servers=[server],
            settings={
                "KAFKA__TOPICS": f'[{{"name": "{REQUESTS}"}}]',
                "KAFKA__REPLY_TOPIC": replies,
                "KAFKA__GROUP_ID": replies,
                "BATCHING__COALESCE": "false",
                **(settings or {}),
            },
        )


@contextmanager
def backlog(plan: Plan) -> Generator[Setting]:
    """Start a new Kafka and fill its request topic; its data is gone afterwards, its log stays."""
    data = plan.folder / "kafka"
    shutil.rmtree(data, ignore_errors=True)
    try:
        with KafkaBroker(data, jvm_options=(), log_file=plan.folder / "kafka.log") as kafka:
            asyncio.run(create_topics(kafka.bootstrap, [REQUESTS]))
            asyncio.run(fill(kafka.bootstrap, plan.queries))
            yield Setting(plan, kafka.bootstrap, count())
    finally:
        shutil.rmtree(data, ignore_errors=True)
