"""Let a process that builds several engines of vLLM's pay once for what is the same each time."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

from vllm.platforms import current_platform


@contextmanager
def several_engines() -> Generator[None]:
    """Inside, no garbage that vLLM has frozen is collected: what a closed engine held stays."""
    platform = type(current_platform)
    register = cache(platform.register_triton_kernel_overrides)  # goes through all modules for Triton's kernels
    gc.freeze()  # each engine collects garbage several times, mostly among modules of torch and vLLM
    with (
        patch.object(gc, "unfreeze"),
        patch.object(platform, "register_triton_kernel_overrides", staticmethod(register)),
    ):
        yield
