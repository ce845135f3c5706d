"""One secured Kafka and one synthetic model server for all tests of this folder."""

from collections.abc import Iterator

import pytest

from loadtest.stack.service import ModelServer
from tests.integration.security.broker import SecureKafka, make


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """A broker that listens with SASL_SSL and SSL."""
    secured = make(tmp_path_factory.mktemp("secure-kafka"))
    with secured.broker:
        yield secured


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """A model server without a model."""
    settings = {"ENGINE__KIND": "synthetic", "PROFILE__ENABLED": "false"}
    with ModelServer(tmp_path_factory.mktemp("model-server") / "log", settings=settings) as server:
        yield server
