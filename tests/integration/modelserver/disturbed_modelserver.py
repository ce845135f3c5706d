"""`python -m tests.integration.modelserver.disturbed_modelserver`: a model server whose check of both tasks fails."""

from __future__ import annotations

import runpy

from modelserver.engines.engine import Generator
from modelserver.errors import TasksDisturb
from modelserver.startup import EngineStart

_generating = EngineStart.generating


def _fail(start: EngineStart, *, embeds: bool) -> Generator:
    if embeds:
        raise TasksDisturb("embeddings and generations cannot share steps: on purpose")
    return _generating(start, embeds=embeds)


if __name__ == "__main__":
    EngineStart.generating = _fail  # type: ignore[assignment, method-assign]
    runpy.run_module("modelserver", run_name="__main__", alter_sys=True)
