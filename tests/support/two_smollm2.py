"""SmolLM2 in float32 on two engines, each on one core."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.stack.service import ModelServer
from loadtest.texts.smollm2 import smollm2

_VARIABLES = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}


@contextmanager
def two_smollm2(folder: Path, **settings: str) -> Generator[list[ModelServer]]:
    """Both started, told more by `settings`; they end with the block."""
    told = {"ENGINE__DTYPE": "float32", "MODEL__MAX_INPUT_TOKENS": "512", **settings}
    path = str(smollm2())
    with pytest.MonkeyPatch.context() as patched:
        for name, value in _VARIABLES.items():
            patched.setenv(name, value)
        servers = [ModelServer(folder / f"server-{number}.log", model_path=path, settings=told) for number in range(2)]
        try:
            for server in servers:
                server.launch()
            for server in servers:
                server.wait(600.0)
            yield servers
        finally:
            for server in servers:
                server.kill()
