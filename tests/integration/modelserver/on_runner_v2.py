"""Run a module on vLLM's second model runner, the one that GPUs use, with its Triton kernels interpreted on a CPU.

`python -m tests.integration.modelserver.on_runner_v2 MODULE ARGUMENTS`
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

VARIABLES = {
    "TRITON_INTERPRET": "1",  # read when Triton is imported
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",  # with both the model server does not execute itself again
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
}


class Index(int):
    """The index of a loop: the kernel of top_p calls its `to`, as of the tensor that a compiled kernel has."""

    def to(self, dtype: object) -> Index:
        del dtype
        return self


def _interpret() -> None:
    os.environ.update(VARIABLES)
    found = import_module("triton.backends")
    found.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    interpreter: Any = import_module("triton.runtime.interpreter")
    patch_language = interpreter._patch_lang_core  # noqa: SLF001 - Triton has no other way

    def patched(language: Any, scope: Any) -> None:
        patch_language(language, scope)
        numbers = language.range
        scope.set_attr(language, "range", lambda *bounds, **options: map(Index, numbers(*bounds, **options)))

    interpreter._patch_lang_core = patched  # noqa: SLF001


if __name__ == "__main__":
    _interpret()
    _, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
