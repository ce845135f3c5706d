"""Kafka's topics, model servers and aggregators as real processes, for tests that start them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator, ModelServer
from tests.support.kafka_client import Topics


@dataclass(frozen=True, slots=True)
class Running:
    """An aggregator at work."""

    process: Aggregator
    kafka: str
    topics: Topics
    group: str


StartAggregator = Callable[..., Running]
NewServer = Callable[..., ModelServer]
StartServer = Callable[..., ModelServer]


def synthetic(log_file: Path, **settings: str) -> ModelServer:
    """A model server that computes nothing, told more by `settings`; not started."""
    told = {"ENGINE__KIND": "synthetic", "PROFILE__ENABLED": "false", **settings}
    return ModelServer(log_file, settings=told)


@contextmanager
def aggregators(kafka: KafkaBroker, folder: Path, prefix: str) -> Generator[StartAggregator]:
    """Start aggregators, each with topics of its own unless told which, named after `prefix`; all end at the end.

    Where `ready` is false it is not waited for.
    """
    started: list[Aggregator] = []

    def start(
        *servers: ModelServer,
        topics: Topics | None = None,
        group: str = "",
        settings: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> Running:
        name = f"{prefix}-{len(started)}"
        topics = topics or Topics(f"{name}.requests", f"{name}.replies")
        group = group or topics.requests
        told = {
            "KAFKA__TOPICS": f'[{{"name": "{topics.requests}"}}]',
            "KAFKA__REPLY_TOPIC": topics.replies,
            "KAFKA__GROUP_ID": group,
            "KAFKA__PARTITIONS": "2",
            **(settings or {}),
        }
        aggregator = Aggregator(
            folder / f"aggregator-{len(started)}.log",
            kafka=kafka.bootstrap,
            model=DEFAULT_MODEL_NAME,
            servers=[server.address for server in servers],
            settings=told,
        )
        started.append(aggregator)
        aggregator.launch()
        if ready:
            aggregator.wait(120.0)
        return Running(aggregator, kafka.bootstrap, topics, group)

    try:
        yield start
    finally:
        for aggregator in started:
            aggregator.kill()
