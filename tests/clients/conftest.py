"""A whole tokenbatch for the clients to call: Apache Kafka, a model server without a model, an aggregator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import Aggregator, ModelServer
from loadtest.texts.smollm2 import NAME as GENERATING


@dataclass(frozen=True, slots=True)
class Stack:
    """Where it listens."""

    grpc: str
    kafka: str


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One for all clients."""
    folder = tmp_path_factory.mktemp("stack")
    synthetic = {"ENGINE__KIND": "synthetic", "PROFILE__ENABLED": "false"}
    generates = {"MODEL__TASK": "generate", "MODEL__NAME": GENERATING}
    with (
        KafkaBroker(folder / "kafka") as broker,
        ModelServer(folder / "model-server.log", settings=synthetic) as server,
        ModelServer(folder / "generating.log", settings={**synthetic, **generates}) as generating,
    ):
        models = [
            {"name": server.model, "servers": [server.address]},
            {"name": GENERATING, "servers": [generating.address]},
        ]
        with Aggregator(
            folder / "aggregator.log",
            kafka=broker.bootstrap,
            model=server.model,
            servers=[server.address],
            settings={"MODELS": json.dumps(models)},
        ) as aggregator:
            yield Stack(aggregator.address, broker.bootstrap)
