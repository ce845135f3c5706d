"""The configuration of the embedded Kafka: server.properties and its logging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, slots=True)
class Seat:
    """A broker's place in its cluster; every one is a controller too."""

    node_id: int
    port: int
    controller_port: int


def server_properties(seat: Seat, cluster: Sequence[Seat], data: Path, settings: Mapping[str, str]) -> str:
    """The text of server.properties of the broker at `seat`; `settings` go over all else."""
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(seat.node_id),
        "controller.quorum.voters": ",".join(f"{each.node_id}@localhost:{each.controller_port}" for each in cluster),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"PLAINTEXT://localhost:{seat.port},CONTROLLER://localhost:{seat.controller_port}",
        "advertised.listeners": f"PLAINTEXT://localhost:{seat.port}",
        "log.dirs": str(data.resolve()),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        **_replication(len(cluster)),
        **settings,
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _replication(brokers: int) -> dict[str, str]:
    """One copy on one broker; up to three, of which one may be away, on more."""
    replicas = str(min(3, brokers))
    in_sync = str(max(1, min(3, brokers) - 1))
    internal_partitions = "8"
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": internal_partitions,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": internal_partitions,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": internal_partitions,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }
