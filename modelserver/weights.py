"""Check a model's files of weights, and the memory that they take, before torch is imported."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.tokenizer_check import check_tokenizer

_GIB = 1 << 30
_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4, "I64": 8}
"""Bytes of a number in memory, by its type in the file; any other type takes 2."""
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check(files: ModelFiles, free_bytes: Callable[[], int]) -> None:
    """Raises CannotStart for damaged weights, weights that do not fit, and a tokenizer of another model."""
    _check_config(files)
    needed = sum(map(_bytes_in_memory, sorted(files.path.glob("*.safetensors"))))
    free = free_bytes()
    if needed > free:
        raise CannotStart(
            f"the weights of {files.path} take at least {needed / _GIB:.1f} GiB, and {free / _GIB:.1f} GiB of memory"
            " are free: free some, or serve a smaller model"
        )
    check_tokenizer(files)


def free_memory(*, on_cpu: bool) -> int:
    """Bytes that a model may take: of all GPUs, without a limit if their driver reports none, or of memory."""
    if not on_cpu:
        asked = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
        try:
            said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
            return sum(map(int, said)) << 20
        except (OSError, subprocess.CalledProcessError, ValueError):
            return sys.maxsize
    import psutil  # noqa: PLC0415 - the image of the synthetic engine lacks it

    limits = [int(text) for file in _CGROUP_LIMITS if file.exists() and (text := file.read_text().strip()).isdigit()]
    return min([psutil.virtual_memory().available, *limits])


def _check_config(files: ModelFiles) -> None:
    config = json.loads((files.path / "config.json").read_bytes())
    if not config.get("architectures"):
        raise CannotStart(
            f"{files.path / 'config.json'} names no architecture: save the model with save_pretrained, which writes it"
        )
    if config.get("is_encoder_decoder"):
        raise CannotStart(
            f"{config['architectures'][0]} in {files.path} is an encoder with a decoder, which vLLM does not serve:"
            " models that embed are encoders or decoders"
        )


def _bytes_in_memory(file: Path) -> int:
    """Bytes of one file's tensors, in half precision if stored wider. Raises CannotStart if the file is damaged."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - the image of the synthetic engine lacks it

    try:
        with safe_open(file, framework="numpy") as opened:
            tensors = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118 - it is no mapping
            return sum(math.prod(tensor.get_shape()) * _BYTES.get(tensor.get_dtype(), 2) for tensor in tensors)
    except (OSError, SafetensorError) as error:
        raise CannotStart(f"{file} is damaged or no safetensors file: {error}. Fetch it again.") from error
