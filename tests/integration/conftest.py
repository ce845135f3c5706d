"""One Apache Kafka for all integration tests and processes of a run; model servers that compute nothing."""

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from tests.support.processes import NewServer, StartServer, synthetic
from tests.support.until import wait_until

SHARED = pytest.StashKey[tuple[KafkaBroker, TemporaryDirectory[str]]]()
PORT = "kafka_port"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start the broker before the first process that runs tests, and tell each its port."""
    if SHARED not in node.config.stash:
        folder = TemporaryDirectory()
        broker = KafkaBroker(Path(folder.name))
        node.config.stash[SHARED] = broker, folder
        broker.launch()
    node.workerinput[PORT] = node.config.stash[SHARED][0].seat.port


def pytest_unconfigure(config: pytest.Config) -> None:
    if SHARED in config.stash:
        broker, folder = config.stash[SHARED]
        broker.kill()
        folder.cleanup()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[KafkaBroker]:
    """A broker without topics, shared."""
    folder = tmp_path_factory.mktemp("kafka")
    port: int | None = getattr(pytestconfig, "workerinput", {}).get(PORT)
    if port is None:
        with KafkaBroker(folder) as broker:
            yield broker
        return
    wait_until(lambda: _listens(port), "the broker listens", 120.0)
    yield KafkaBroker(folder, port)  # started by the process that started this one


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


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files whose tests may take longest, then with those of most tests.

    One process runs a file, and the last to begin ends last.
    """
    longest: Counter[Path] = Counter()
    tests = Counter(item.path for item in items)
    for item in items:
        timeout = item.get_closest_marker("timeout")
        longest[item.path] = max(longest[item.path], timeout.args[0] if timeout is not None else 0)
    items.sort(key=lambda item: (-longest[item.path], -tests[item.path], item.path))
