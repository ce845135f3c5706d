"""One Apache Kafka for all integration tests of a run; each test names topics of its own."""

from collections.abc import Iterator

import pytest

from loadtest.stack.kafka import KafkaBroker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker without topics, shared."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
