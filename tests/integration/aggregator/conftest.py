"""Real processes: one Kafka, one vLLM on the CPU, one quick engine, and aggregators as each test wants them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator, ModelServer
from tests.integration.aggregator.desk import Topics


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


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """MiniLM on vLLM; loading it takes most of a minute, so there is one."""
    server = ModelServer(tmp_path_factory.mktemp("minilm") / "log", settings={"PROFILE__BUDGET_S": "5"})
    server.start(timeout_s=400.0)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """An engine that computes nothing; token id 9947 ("poison") makes it fail."""
    with synthetic(tmp_path_factory.mktemp("quick") / "log", SYNTHETIC__POISON_TOKEN_ID="9947") as server:
        yield server


def synthetic(log_file: Path, **settings: str) -> ModelServer:
    """A model server that computes nothing, told more by `settings`; not started."""
    told = {"ENGINE__KIND": "synthetic", "PROFILE__ENABLED": "false", **settings}
    return ModelServer(log_file, settings=told)


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    """Make model servers that compute nothing, told more by `settings`, to be started; all end with the test."""
    made: list[ModelServer] = []

    def make(**settings: str) -> ModelServer:
        made.append(synthetic(tmp_path / f"modelserver-{len(made)}.log", **settings))
        return made[-1]

    yield make
    for server in made:
        server.kill()


@pytest.fixture
def start_server(new_server: NewServer) -> StartServer:
    """The same, started."""

    def start(**settings: str) -> ModelServer:
        server = new_server(**settings)
        server.start()
        return server

    return start


@pytest.fixture
def start_aggregator(kafka: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartAggregator]:
    """Start aggregators; all end with the test."""
    # The name alone is not enough: cut short, that of a parametrized test is its sibling's too.
    prefix = f"{request.node.originalname[:40]}-{secrets.token_hex(4)}"
    with aggregators(kafka, tmp_path, prefix) as start:
        yield start


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


async def make_topics(
    bootstrap: str, *names: str, partitions: int = 2, configs: Mapping[str, str] | None = None
) -> None:
    """Create topics before an aggregator sees them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(configs or {})) for name in names])
    finally:
        await admin.close()
