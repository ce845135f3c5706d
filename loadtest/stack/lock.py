"""Let one stack at a time use a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from loadtest.stack.errors import StackError


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
