"""A split pair: a model server that embeds, one that generates, and an aggregator before both, without Kafka."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.stack.service import FOR_WHOLE_TEXTS, ModelServer, without_kafka

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
