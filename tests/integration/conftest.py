"""One Apache Kafka for all integration tests of a run; each test names topics of its own."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.stack.kafka import KafkaBroker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker without topics, shared."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files whose tests may take longest: one process runs a file, and the last to begin ends last."""
    longest: Counter[Path] = Counter()
    for item in items:
        timeout = item.get_closest_marker("timeout")
        longest[item.path] = max(longest[item.path], timeout.args[0] if timeout is not None else 0)
    items.sort(key=lambda item: -longest[item.path])
