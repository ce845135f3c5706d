"""One Apache Kafka for the contract tests of a run; each test has topics and a group of its own."""

from collections.abc import Iterator

import pytest

from loadtest.stack.kafka import KafkaBroker
from tests.support.kafka_clusters import Cluster, FakeCluster, RealCluster


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker without topics, shared."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(params=["fake", pytest.param("kafka", marks=pytest.mark.kafka)])
async def cluster(request: pytest.FixtureRequest) -> Cluster:
    """The in-memory Kafka, then the real one."""
    if request.param == "fake":
        return FakeCluster()
    return RealCluster(request.getfixturevalue("kafka").bootstrap)
