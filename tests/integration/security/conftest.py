"""One secured Kafka and one synthetic model server for all tests of this folder."""

from collections.abc import Iterator

import pytest

from loadtest.stack.service import ModelServer
from tests.integration.security.broker import SecureKafka, make
from tests.support.processes import synthetic


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    secured = make(tmp_path_factory.mktemp("secure-kafka"))
    with secured.broker:
        yield secured


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with synthetic(tmp_path_factory.mktemp("model-server") / "log") as server:
        yield server
