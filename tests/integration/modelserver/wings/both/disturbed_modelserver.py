"""`python -m tests.integration.modelserver.wings.both.disturbed_modelserver`: its check of both tasks fails."""

from __future__ import annotations

import runpy

from modelserver.wings.both.generator import MixedGenerator
from modelserver.wings.both.mode import MixedStart


def _fail(self: MixedStart, engine: MixedGenerator) -> None:
    del engine
    self.disturbed("embeddings and generations cannot share steps: on purpose")


if __name__ == "__main__":
    MixedStart.check = _fail  # type: ignore[method-assign]
    runpy.run_module("modelserver", run_name="__main__", alter_sys=True)
