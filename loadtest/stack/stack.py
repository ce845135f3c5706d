"""All of tokenbatch on one machine: Kafka, model servers, one aggregator; started together, stopped in order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Literal, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from loadtest.stack.addresses import USUAL, Addresses
from loadtest.stack.kafka import BACKGROUND_TOPIC, KafkaBroker
from loadtest.stack.part import Part
from loadtest.stack.ports import choose_port
from loadtest.stack.redis import RedisServer
from loadtest.stack.service import FOR_WHOLE_TEXTS, Aggregator, ModelServer, Service
from loadtest.texts import minilm_ranker

_REMIND_S = 5.0  # who reads a log waits no longer for a sign of life, as in .ci/install


@dataclass(slots=True)
class _Stage:
    """A stage and what it does now, since `since_s`."""

    began_s: float
    detail: str = ""
    since_s: float = 0.0
    bar: TaskID | None = None


@dataclass(slots=True)
class Stages:
    """Stages by name, in the order in which they begin."""

    console: Console
    clock: Callable[[], float] = time.monotonic
    _stages: dict[str, _Stage] = field(default_factory=dict[str, _Stage])
    _live: Progress | None = None
    _printed_s: float = 0.0

    def __enter__(self) -> Self:
        """Start drawing, where there is a terminal to draw on."""
        if self.console.is_terminal:
            columns = (SpinnerColumn(finished_text="[green]✔"), TextColumn("{task.description}"), TimeElapsedColumn())
            self._live = Progress(*columns, console=self.console)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what was drawn, and draw no more."""
        if self._live:
            self._live.stop()
            self._live = None

    def begin(self, name: str, detail: str) -> None:
        stage = self._stages[name] = _Stage(self.clock())
        if self._live:
            stage.bar = self._live.add_task(name, total=1)
        self.tell(name, detail)

    def tell(self, name: str, detail: str) -> None:
        stage = self._stages[name]
        if detail == stage.detail:
            return
        stage.detail, stage.since_s = detail, self.clock()
        if self._live and stage.bar is not None:
            self._live.update(stage.bar, description=f"{name:<13} {detail}")
        else:
            self._print(name, detail)

    def remind(self, name: str) -> None:
        """Say that this stage goes on, to a log that has heard of none for a while; a terminal draws the time."""
        now_s, stage = self.clock(), self._stages[name]
        if not self._live and now_s - self._printed_s >= _REMIND_S:
            self._print(name, f"still {stage.detail}, {now_s - stage.since_s:.0f} s")

    def count(self, name: str, detail: str, done: int, total: int) -> None:
        """How many there are of all that it needs; a log hears of every quarter."""
        if self._live or done % ceil(total / 4) == 0:
            self.tell(name, f"{detail}, {done} of {total}")

    def end(self, name: str, detail: str) -> None:
        stage = self._stages[name]
        if self._live and stage.bar is not None:
            self._live.update(stage.bar, completed=1)
            self.tell(name, detail)
        else:
            self.tell(name, f"{detail} ({self.clock() - stage.began_s:.1f} s)")

    def _print(self, name: str, detail: str) -> None:
        self.console.print(f"==> {name}: {detail}", markup=False, soft_wrap=True)
        self._printed_s = self.clock()


_MODEL_TIMEOUT_S = 1800.0  # a first start may download the model
_TIMEOUT_S = 120.0
_GRACE_S = 40.0
_POLL_S = 0.1
_MODEL_SERVER_METRICS_PORT = 9465
REDIS_PORT = 6379
_REDIS_SETTINGS = {"REDIS__ALLOWED_REPLIES": '["list:*"]'}
_TEXT_TOPIC = '{"name": "generate.requests.v1", "task": "generate"}'
_EMBED_TOPICS = f'{{"name": "embed.requests.v1"}}, {{"name": "{BACKGROUND_TOPIC}", "priority": "background"}}'
_TOPICS = {
    "": f"[{_EMBED_TOPICS}]",
    "generate": f"[{_TEXT_TOPIC}]",
    "both": f"[{_EMBED_TOPICS}, {_TEXT_TOPIC}]",
}


@dataclass(frozen=True, slots=True)
class StackPlan:
    """The parts to start. Data and logs go into `folder`; `kafka` is one's own, None for one started here.

    `redis` is one's own, empty for one started here, None for none.
    A port of None is the usual one, or any when that is busy. `task`: the model's; by its own files when empty.
    `servers` model servers run, with `settings` (environment variables without their prefix). `ranker`: the folder of
    a model that ranks, on one more model server; empty for none. `batches`: files of requests are taken.
    """

    folder: Path
    kafka: str | None = None
    redis: str | None = None
    kafka_port: int | None = None
    grpc_port: int | None = None
    http_port: int | None = None
    metrics_port: int | None = None
    modelserver_port: int | None = None
    model_path: str = ""
    task: Literal["", "generate", "both"] = ""
    servers: int = 1
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    ranker: str = ""
    batches: bool = False


class Stack:
    """The processes of one stack. Raises StackError when a port requested is busy."""

    def __init__(self, plan: StackPlan, stages: Stages) -> None:
        self._stages = stages
        logs = plan.folder / "logs"
        self._kafka: KafkaBroker | None = None
        kafka = plan.kafka
        if kafka is None:
            port = _port(plan.kafka_port, USUAL.kafka, "--kafka-port")
            self._kafka = KafkaBroker(plan.folder / "kafka", port, log_file=logs / "kafka.log", on_jars=self._tell_jars)
            kafka = self._kafka.bootstrap
        self._redis = (
            RedisServer(plan.folder / "redis", choose_port(None, REDIS_PORT, "")) if plan.redis == "" else None
        )
        redis = self._redis.address if self._redis else plan.redis or ""
        both = {"MODEL__TASK": "both", **FOR_WHOLE_TEXTS} if plan.task == "both" else {}
        port = _port(plan.modelserver_port, USUAL.modelservers[0], "--modelserver-port")
        ports = [(port, choose_port(None, _MODEL_SERVER_METRICS_PORT, "")), *[(None, None)] * (plan.servers - 1)]
        self.model_servers = [
            ModelServer(
                logs / f"modelserver{number or ''}.log",
                port=port,
                metrics_port=metrics_port,
                model_path=plan.model_path,
                settings={**both, **plan.settings},
                name=f"model server {number + 1}" if plan.servers > 1 else "model server",
            )
            for number, (port, metrics_port) in enumerate(ports)
        ]
        servers = [server.address for server in self.model_servers]
        models: list[dict[str, object]] = [{"name": self.model, "servers": servers}]
        if plan.ranker:
            ranker = ModelServer(
                logs / "ranker.log", model_path=plan.ranker, settings={"MODEL__TASK": "rank"}, name="ranking server"
            )
            self.model_servers.append(ranker)
            models.append({"name": ranker.model, "aliases": [minilm_ranker.ALIAS], "servers": [ranker.address]})
        self._aggregator = Aggregator(
            logs / "aggregator.log",
            kafka=kafka,
            model=self.model,
            servers=servers,
            port=_port(plan.grpc_port, USUAL.grpc, "--grpc-port"),
            http_port=_port(plan.http_port, USUAL.http, "--http-port"),
            metrics_port=_port(plan.metrics_port, USUAL.metrics, "--metrics-port"),
            settings={
                "KAFKA__TOPICS": _TOPICS[plan.task],
                **({"MODELS": json.dumps(models)} if plan.ranker else {}),
                **({"BATCHES__STORE": f"file://{(plan.folder / 'batches').resolve()}"} if plan.batches else {}),
                **({"REDIS__ENABLED": "true", "REDIS__SERVERS": redis, **_REDIS_SETTINGS} if redis else {}),
            },
        )
        self.addresses = Addresses(
            kafka,
            self._aggregator.address,
            self._aggregator.http_address,
            self._aggregator.metrics_address,
            [server.address for server in self.model_servers],
            f"http://{self._aggregator.metrics_address}/",
            redis,
            [server.metrics_address for server in self.model_servers],
        )
        self._starting: list[Part] = []

    @property
    def model(self) -> str:
        return self.model_servers[0].model

    @property
    def moved(self) -> list[str]:
        """A sentence for each address that is not the usual one."""
        pairs = [
            ("Kafka", self._kafka and self._kafka.bootstrap, USUAL.kafka),
            ("the aggregator's gRPC", self.addresses.grpc, USUAL.grpc),
            ("its HTTP", self.addresses.http, USUAL.http),
            ("its metrics", self.addresses.metrics, USUAL.metrics),
            ("the model server", self.addresses.modelservers[0], USUAL.modelservers[0]),
        ]
        return [f"{name} is at {here}, not {usual}" for name, here, usual in pairs if here and here != usual]

    def start(self) -> None:
        """Start all, and return when a query would be answered. Raises StackError."""
        for server in self.model_servers:
            self._launch(server)
        if self._kafka:
            self._launch(self._kafka)
            self._wait(self._kafka, _TIMEOUT_S)
        if self._redis:
            self._launch(self._redis)
            self._wait(self._redis, _TIMEOUT_S)
        self._launch(self._aggregator)
        for server in self.model_servers:
            self._wait(server, _MODEL_TIMEOUT_S)
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
        for part in self._parts():
            part.kill()

    def _parts(self) -> list[Part]:
        """In the order of stopping."""
        services: list[Part] = [self._aggregator, *self.model_servers]
        return [*services, *filter(None, (self._kafka, self._redis))]

    def _launch(self, part: Part) -> None:
        self._stages.begin(part.name, "starting")
        part.launch()
        self._starting.append(part)

    def _wait(self, awaited: Part, timeout_s: float) -> None:
        """Until this part is ready; the other starting parts are watched too."""
        deadline_s = time.monotonic() + timeout_s
        while awaited in self._starting:
            for part in list(self._starting):
                self._watch(part)
            if time.monotonic() > deadline_s:
                raise awaited.too_late(timeout_s)
            if awaited in self._starting:
                self._stages.remind(awaited.name)
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
        if part is self._redis:
            return self.addresses.redis
        return next((server.address for server in self.model_servers if part is server), self.addresses.kafka)

    def _tell_jars(self, done: int, total: int) -> None:
        if done < total:
            self._stages.count("Kafka", "downloading jars", done, total)


def _port(wanted: int | None, usual_address: str, option: str) -> int:
    return choose_port(wanted, int(usual_address.rpartition(":")[2]), option)
