"""All of tokenbatch on one machine: Kafka, one model server, one aggregator; started together, stopped in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from loadtest.stack.addresses import USUAL, Addresses
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.part import Part
from loadtest.stack.ports import choose_port
from loadtest.stack.service import Aggregator, ModelServer, Service
from loadtest.stack.stages import Stages

_MODEL_TIMEOUT_S = 1800.0  # a first start may download the model
_TIMEOUT_S = 120.0
_GRACE_S = 40.0
_POLL_S = 0.1
_MODEL_SERVER_METRICS_PORT = 9465
_TEXT_TOPICS = '[{"name": "generate.requests.v1", "task": "generate"}]'


@dataclass(frozen=True, slots=True)
class StackPlan:
    """What to start. Data and logs go into `folder`; `kafka` is one's own, None for one started here.

    A port of None is the usual one, or any when that is busy. `generates`: the model answers with texts.
    """

    folder: Path
    kafka: str | None = None
    kafka_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    modelserver_port: int | None = None
    model_path: str = ""
    generates: bool = False


class Stack:
    """The processes of one stack. Raises StackError when a port asked for is busy."""

    def __init__(self, plan: StackPlan, stages: Stages) -> None:
        self._stages = stages
        logs = plan.folder / "logs"
        self._kafka: KafkaBroker | None = None
        kafka = plan.kafka
        if kafka is None:
            port = _port(plan.kafka_port, USUAL.kafka, "--kafka-port")
            self._kafka = KafkaBroker(plan.folder / "kafka", port, log_file=logs / "kafka.log", on_jars=self._tell_jars)
            kafka = self._kafka.bootstrap
        self._model_server = ModelServer(
            logs / "modelserver.log",
            port=_port(plan.modelserver_port, USUAL.modelservers[0], "--modelserver-port"),
            metrics_port=choose_port(None, _MODEL_SERVER_METRICS_PORT, ""),
            model_path=plan.model_path,
        )
        self._aggregator = Aggregator(
            logs / "aggregator.log",
            kafka=kafka,
            model=self._model_server.model,
            servers=[self._model_server.address],
            port=_port(plan.grpc_port, USUAL.grpc, "--grpc-port"),
            metrics_port=_port(plan.metrics_port, USUAL.metrics, "--metrics-port"),
            settings={"KAFKA__TOPICS": _TEXT_TOPICS} if plan.generates else None,
        )
        self.addresses = Addresses(
            kafka, self._aggregator.address, self._aggregator.metrics_address, [self._model_server.address]
        )
        self._starting: list[Part] = []

    @property
    def moved(self) -> list[str]:
        """A sentence for each address that is not the usual one."""
        pairs = [
            ("Kafka", self._kafka and self._kafka.bootstrap, USUAL.kafka),
            ("the aggregator's gRPC", self.addresses.grpc, USUAL.grpc),
            ("its metrics", self.addresses.metrics, USUAL.metrics),
            ("the model server", self.addresses.modelservers[0], USUAL.modelservers[0]),
        ]
        return [f"{name} is at {here}, not {usual}" for name, here, usual in pairs if here and here != usual]

    def start(self) -> None:
        """Start all, and return when a query would be answered. Raises StackError."""
        self._launch(self._model_server)
        if self._kafka:
            self._launch(self._kafka)
            self._wait(self._kafka, _TIMEOUT_S)
        self._launch(self._aggregator)
        self._wait(self._model_server, _MODEL_TIMEOUT_S)
        self._wait(self._aggregator, _TIMEOUT_S)

    def check(self) -> None:
        """Raises StackError when a part has ended."""
        for part in self._parts():
            if part.exit_code is not None:
                part.child.raise_if_ended("It was serving until then.")

    def stop(self) -> list[str]:
        """Stop the aggregator, which drains, then the model server, then Kafka; what did not go well, in words."""
        complaints: list[str] = []
        for part in self._parts():
            ended_before = part.exit_code is not None
            code = part.stop(_GRACE_S)
            if code and isinstance(part, Service) and not ended_before:
                complaints.append(f"the {part.name} ended with exit code {code}\n{part.child.log.tail()}")
        return complaints

    def kill(self) -> None:
        """End all at once."""
        for part in self._parts():
            part.kill()

    def _parts(self) -> list[Part]:
        """In the order of stopping."""
        services: list[Part] = [self._aggregator, self._model_server]
        return [*services, self._kafka] if self._kafka else services

    def _launch(self, part: Part) -> None:
        self._stages.begin(part.name, "starting")
        part.launch()
        self._starting.append(part)

    def _wait(self, awaited: Part, timeout_s: float) -> None:
        """Until this part is ready; the others that start meanwhile are watched too."""
        deadline_s = time.monotonic() + timeout_s
        while awaited in self._starting:
            for part in list(self._starting):
                self._watch(part)
            if time.monotonic() > deadline_s:
                raise awaited.too_late(timeout_s)
            time.sleep(_POLL_S)

    def _watch(self, part: Part) -> None:
        if isinstance(part, Service):
            for fields in part.news():
                if "stage" in fields:
                    self._stages.tell(part.name, str(fields["event"]))
        if part.is_ready():
            self._starting.remove(part)
            self._stages.end(part.name, f"ready at {self._where(part)}")

    def _where(self, part: Part) -> str:
        if part is self._aggregator:
            return f"{self._aggregator.address}, metrics at {self._aggregator.metrics_address}"
        return self._model_server.address if part is self._model_server else self.addresses.kafka

    def _tell_jars(self, done: int, total: int) -> None:
        if done < total:
            self._stages.count("Kafka", "downloading jars", done, total)


def _port(wanted: int | None, usual_address: str, option: str) -> int:
    return choose_port(wanted, int(usual_address.rpartition(":")[2]), option)
