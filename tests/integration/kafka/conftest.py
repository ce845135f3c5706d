"""A broker that tests may stop, break and start again, apart from the one that others share."""

from collections.abc import Iterator

import pytest

from loadtest.stack.kafka import KafkaBroker
from tests.support.kafka_clusters import RealCluster


@pytest.fixture
def shared(kafka: KafkaBroker) -> RealCluster:
    """A group and topics of its own on the shared broker."""
    return RealCluster(kafka.bootstrap)


@pytest.fixture(scope="session")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker for those who stop it."""
    with KafkaBroker(tmp_path_factory.mktemp("own-kafka")) as broker:
        yield broker


@pytest.fixture
def fragile(own_broker: KafkaBroker) -> Iterator[RealCluster]:
    """The same on a broker that may be stopped; it runs again afterwards."""
    yield RealCluster(own_broker.bootstrap)
    if own_broker.exit_code is not None:
        own_broker.start()
