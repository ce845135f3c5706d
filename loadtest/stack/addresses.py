"""Where a running stack listens, in a file that other terminals and scripts can read."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loadtest.stack.errors import StackError

DEFAULT_FOLDER = Path(".run")
_FILE_NAME = "stack.json"


@dataclass(frozen=True, slots=True)
class Addresses:
    """host:port of each part; `http` and `metrics` are the aggregator's. `page`: the URL of its live page.

    `modelserver_metrics`: where the model servers' monitoring listens. `redis` is empty unless its streams are read.
    """

    kafka: str
    grpc: str
    http: str
    metrics: str
    modelservers: list[str]
    page: str
    redis: str = ""
    modelserver_metrics: list[str] = field(default_factory=list[str])

    def write(self, folder: Path) -> None:
        """Put them into `folder`/stack.json, at once or not at all."""
        file = folder / _FILE_NAME
        unfinished = file.with_suffix(".new")
        unfinished.write_text(
            json.dumps({name: value for name, value in asdict(self).items() if value}, indent=2) + "\n"
        )
        unfinished.replace(file)


USUAL = Addresses(
    "localhost:9092",
    "localhost:50051",
    "localhost:8000",
    "localhost:9464",
    ["localhost:50061"],
    "http://localhost:9464/",
)
"""The ports that a stack takes when they are free."""


def running_stack(folder: Path = DEFAULT_FOLDER) -> Addresses:
    """The addresses of the stack that runs in `folder`; the usual ones when none does."""
    try:
        return Addresses(**json.loads((folder / _FILE_NAME).read_text()))
    except FileNotFoundError:
        return USUAL


def forget(folder: Path) -> None:
    """The stack has stopped."""
    (folder / _FILE_NAME).unlink(missing_ok=True)


@contextmanager
def only_one(folder: Path) -> Generator[None]:
    """Hold the folder's lock; the kernel gives it back even if this process is killed. Raises StackError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise StackError(
                f"another stack runs in {folder} (process {file.read().strip()}): "
                "stop it with Ctrl-C there, or start this one with --data-dir and another folder"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
