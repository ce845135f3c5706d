"""Run a process with some of its constants changed: `python -m loadtest.stack.constants MODULE`.

The variables whose names end with `_CONSTANTS` say which, as JSON: {"package.module:Class.NAME": value}. A mapping
changes single keys.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from importlib import import_module
from typing import Any

NAME = "CONSTANTS"


def command(module: str) -> list[str]:
    """The command line that runs a module so."""
    return [sys.executable, "-m", __name__, module]


def change(changes: dict[str, Any]) -> None:
    for path, value in changes.items():
        module, _, names = path.partition(":")
        *owners, name = names.split(".")
        owner: Any = import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        if isinstance(value, dict):
            getattr(owner, name).update(value)
        else:
            assert hasattr(owner, name), f"{path} is no constant"
            setattr(owner, name, value)


if __name__ == "__main__":
    for variable in [name for name in os.environ if name.endswith(f"_{NAME}")]:
        change(json.loads(os.environ.pop(variable)))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
