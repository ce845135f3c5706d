"""`python -m tests.integration.modelserver.disturbed_modelserver`: a model server whose check of both tasks fails."""

from __future__ import annotations

import runpy
from typing import NoReturn

from modelserver.errors import TasksDisturb
from modelserver.startup import EngineStart


def _fail(start: EngineStart) -> NoReturn:
    del start
    raise TasksDisturb("embeddings and generations cannot share steps: on purpose")


if __name__ == "__main__":
    EngineStart.both = _fail  # type: ignore[assignment, method-assign]
    runpy.run_module("modelserver", run_name="__main__", alter_sys=True)
