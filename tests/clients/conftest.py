"""A whole tokenbatch for the clients to call: Apache Kafka, a model server without a model, an aggregator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.redis import UNSYNCED, RedisServer
from loadtest.stack.service import Aggregator, ModelServer
from loadtest.texts import minilm_ranker
from loadtest.texts.smollm2 import NAME as GENERATING
from tests.support.listening import MODEL_FOLDER

RANKING = minilm_ranker.NAME
CHAT_TEMPLATE = "{% for each in messages %}{{ each.role }}: {{ each.content }} {% endfor %}assistant:"


@dataclass(frozen=True, slots=True)
class Stack:
    """Where it listens."""

    grpc: str
    http: str
    kafka: str
    redis: str
    metrics: str
    modelserver: str


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One for all clients, whose models have the names that `make up` gives them."""
    folder = tmp_path_factory.mktemp("stack")
    synthetic = {"ENGINE__KIND": "synthetic", "PROFILE__ENABLED": "false"}
    model = folder / "model"
    shutil.copytree(MODEL_FOLDER, model)
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    generates = {"MODEL__TASK": "both", "MODEL__NAME": GENERATING, "MODEL__PATH": str(model)}
    ranks = {"MODEL__TASK": "rank", "MODEL__NAME": RANKING}
    with (
        KafkaBroker(folder / "kafka") as broker,
        RedisServer(folder / "redis", settings=UNSYNCED) as redis,
        ModelServer(folder / "model-server.log", settings=synthetic) as server,
        ModelServer(folder / "generating.log", settings={**synthetic, **generates}) as generating,
        ModelServer(folder / "ranking.log", settings={**synthetic, **ranks}) as ranking,
    ):
        models = [
            {"name": server.model, "servers": [server.address]},
            {"name": GENERATING, "servers": [generating.address]},
            {"name": RANKING, "aliases": [minilm_ranker.ALIAS], "servers": [ranking.address]},
        ]
        with Aggregator(
            folder / "aggregator.log",
            kafka=broker.bootstrap,
            model=server.model,
            servers=[server.address],
            settings={
                "MODELS": json.dumps(models),
                "REDIS__ENABLED": "true",
                "REDIS__SERVERS": redis.address,
                "REDIS__ALLOWED_REPLIES": '["list:caller:*"]',
            },
        ) as aggregator:
            yield Stack(
                aggregator.address,
                aggregator.http_address,
                broker.bootstrap,
                redis.address,
                aggregator.metrics_address,
                server.address,
            )
