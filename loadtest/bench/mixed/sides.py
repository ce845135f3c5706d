"""The servers that are measured, two for both tasks and one for each, and the aggregators before them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtest.bench.mixed.requests import Clients, Lengths, Task
from loadtest.bench.setting import Plan
from loadtest.screen import ERRORS
from loadtest.stack.part import output_of
from loadtest.stack.service import Aggregator, ModelServer, without_kafka

_BOTH = "both"
_ALTERNATING = "loadtest.bench.programs.alternating_modelserver"
_SWITCH_S = 0.5
_ONE = {"overhead", "p99"}
"""Parts that measure one server for both tasks."""
_NO_TARGET_S = "10"
"""Between two tokens: a target would make steps shorter where other work makes them slow."""
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # With these set the model server does not execute itself again, which would be the unchanged program.
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model in a folder, and the lengths of its requests."""

    folder: Path
    lengths: Lengths


class Sides:
    """Clients of two servers for both tasks, of a split pair, and of single servers."""

    def __init__(self, both: Sequence[ModelServer], mixed: Clients, split: Clients, one_mixed: Clients) -> None:
        self.mixed, self.split, self.one_mixed = mixed, split, one_mixed
        self._both = both

    @contextmanager
    def pair(self, name: str) -> Generator[Clients]:
        """Two servers: "mixed", "alternating" or "split"."""
        if name == "alternating":
            self._switch()
        try:
            yield self.split if name == "split" else self.mixed
        finally:
            if name == "alternating":
                self._switch()

    def _switch(self) -> None:
        for server in self._both:
            os.kill(server.pid, signal.SIGUSR1)
        time.sleep(_SWITCH_S)


PAIRS = ("mixed", "alternating", "split")


@contextmanager
def sides(plan: Plan, model: Model) -> Generator[Sides]:
    """Start the servers, one after the other: each measures itself. All compute on one thread. Raises StackError."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    server = partial(_server, plan, model)
    both = [server(f"both-{number}", _BOTH, _ALTERNATING) for number in range(2)]
    alone: dict[str, list[ModelServer]] = {task: [server(f"{task}-alone", task)] for task in Task}
    # The product itself, which cannot alternate, is compared with the servers of one task.
    one = both[0] if _ONE.isdisjoint(plan.mixed.parts) else server("both-alone", _BOTH)
    groups: dict[str, dict[str, list[ModelServer]]] = {
        "mixed": {_BOTH: both},
        "split": alone,
        "one_mixed": {_BOTH: [one]},
    }
    with ExitStack() as running:
        for part in dict.fromkeys((*both, one, *alone[Task.EMBED], *alone[Task.GENERATE])):
            running.enter_context(part)
            ERRORS.print(f"==> {model.folder.name}: {part.name} is ready")
        clients: dict[str, Clients] = {}
        for name, servers in groups.items():
            front, models = _front(plan, name, servers)
            running.enter_context(front)
            pids = [each.pid for group in servers.values() for each in group]
            clients[name] = Clients(front.address, models, pids)
        yield Sides(both, **clients)


def _server(plan: Plan, model: Model, name: str, task: str, module: str = "modelserver") -> ModelServer:
    return ModelServer(
        plan.folder / f"{name}.log",
        model_path=str(model.folder),
        settings={
            "MODEL__NAME": _BOTH if task == _BOTH else task,
            "MODEL__TASK": task,
            "GENERATION__TIME_PER_OUTPUT_TOKEN_S": _NO_TARGET_S,
            "PROFILE__CACHE": str(plan.profiles),
        },
        environment=_ENVIRONMENT,
        module=module,
    )


def _front(plan: Plan, name: str, servers: Mapping[str, Sequence[ModelServer]]) -> tuple[Aggregator, dict[Task, str]]:
    """An aggregator before one model for both tasks, or before one for each; and the model of each task."""
    models = [{"name": model, "servers": [each.address for each in group]} for model, group in servers.items()]
    log_file = plan.folder / f"aggregator-{name}.log"
    front = without_kafka(log_file, model="", servers=[], settings={"MODELS": json.dumps(models)})
    return front, {task: task if task in servers else _BOTH for task in Task}


def mid_model(plan: Plan) -> Path:
    """The model of 20 million parameters, made once. Raises StackError."""
    folder = plan.folder / "mid-random"
    if not (folder / "model.safetensors").is_file():
        output_of("loadtest.texts.tiny", str(folder), "--mid")
    return folder
