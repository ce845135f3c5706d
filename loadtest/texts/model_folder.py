"""Make a model folder by a program of its own, once for all stacks of a machine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from loadtest.stack.part import output_of


def make_once(folder: Path, module: str, *arguments: str) -> None:
    """Run `python -m MODULE ARGUMENTS FOLDER`; another process may make the same. Raises StackError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        output_of(module, *arguments, f"{made}/{folder.name}")
        if not folder.exists():
            shutil.move(f"{made}/{folder.name}", folder)
