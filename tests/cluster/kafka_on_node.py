"""Apache Kafka on the cluster's node, where pods and this process reach it by the node's address."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from loadtest.stack.kafka import KafkaBroker
from tests.cluster.one_node_cluster import NODE_IP

PORT = 9092
BOOTSTRAP = f"{NODE_IP}:{PORT}"


@contextmanager
def kafka_on_node(folder: Path) -> Generator[KafkaBroker]:
    """A broker that advertises itself by the node's address; records carry the broker's time."""
    broker = KafkaBroker(folder, PORT, settings={"log.message.timestamp.type": "LogAppendTime"})
    broker.settings |= {
        "listeners": f"PLAINTEXT://0.0.0.0:{PORT},CONTROLLER://localhost:{broker.seat.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{BOOTSTRAP}",
    }
    with broker:
        yield broker
