"""What every process that a test starts inherits, and what is left out with the engine for GPUs."""

import os

import pytest
from hypothesis import settings

from k8s.pod.open_files import raise_limit
from modelserver.process_env import installed_vllm
from tests.support.patience import patient

# Many engines share few cores. A step in two threads lasts as long as the slower of them, and waits for it at full
# speed, on a core that the other threads need: beside other engines it takes twenty times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, which are filled with zeros

settings.load_profile("ci")  # Hypothesis' own: the same examples in each run, however slowly they are drawn
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False)
raise_limit()  # clients and servers of some tests are one process

_LONGEST_S = 3600.0
"""The time-out of a test that may take long: one that hangs is to end."""
ON_GPU = (installed_vllm() or "").startswith("vllm ")
LEFT_OUT = "tests marked vllm are left out: they expect vLLM's build for CPUs; ENGINE=cpu make test runs them"


def pytest_report_header() -> list[str]:
    """Say what is left out, and why."""
    return [LEFT_OUT] if ON_GPU else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what expects a CPU, and wait longer than a test says, which thinks of an idle machine.

    Of a CPU: exact float32, errors that a GPU answers with its loss, interpreted kernels.
    """
    if ON_GPU:
        leave_out(config, items)
    for item in items:
        timeout = item.get_closest_marker("timeout")
        if timeout is not None:
            item.add_marker(
                pytest.mark.timeout(min(patient(timeout.args[0]), max(_LONGEST_S, timeout.args[0]))), append=False
            )


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests that load a model into vLLM's build for CPUs."""
    marked = [item for item in items if item.get_closest_marker("vllm") is not None]
    config.hook.pytest_deselected(items=marked)
    items[:] = [item for item in items if item not in marked]
