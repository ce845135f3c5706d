"""What every benchmark runs in: a Kafka with a backlog, model servers that answer at once, processes to measure."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Generator, Sequence
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
class Setting:
    """A Kafka at `bootstrap`, whose request topic holds `queries` unique queries, and a folder for logs."""

    folder: Path
    bootstrap: str
    queries: int
    repeats: int
    token_budget: int
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
        arguments = ["--port", str(port), "--token-budget", str(self.token_budget), "--step-s", str(step_s)]
        with Program("loadtest.bench.instant_modelserver", arguments, self.folder / "instant_modelserver.log", port):
            yield f"localhost:{port}"

    def aggregator(self, server: str, replies: str) -> Aggregator:
        """One that reads the backlog from its beginning, coalescing nothing; not started yet."""
        return Aggregator(
            self.folder / "aggregator.log",
            kafka=self.bootstrap,
            model=MODEL,
            servers=[server],
            settings={
                "KAFKA__TOPICS": f'[{{"name": "{REQUESTS}"}}]',
                "KAFKA__REPLY_TOPIC": replies,
                "KAFKA__GROUP_ID": replies,
                "BATCHING__COALESCE": "false",
            },
        )


@contextmanager
def setting(folder: Path, *, queries: int, repeats: int, token_budget: int) -> Generator[Setting]:
    """Start Kafka in `folder` and fill the request topic."""
    with KafkaBroker(folder / "kafka", jvm_options=()) as kafka:
        asyncio.run(create_topics(kafka.bootstrap, [REQUESTS]))
        asyncio.run(fill(kafka.bootstrap, queries))
        yield Setting(folder, kafka.bootstrap, queries, repeats, token_budget, count())
