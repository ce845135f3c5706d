"""The linear layer of each token with its weights, float32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from modelserver.errors import CannotStart

_NAMES = frozenset(("weight", "bias"))


def projection(file: Path, inputs: int, outputs: int, *, bias: bool, rectifies: bool) -> nn.Module:
    """A linear layer, with ReLU behind it where it `rectifies`. Raises CannotStart."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    try:
        linear.load_state_dict(_weights(file), strict=True)
    except Exception as error:
        said = " ".join(str(error).split())[:400]
        raise CannotStart(f"the weights of {file} cannot be read: {type(error).__name__}: {said}") from error
    whole: nn.Module = nn.Sequential(linear, nn.ReLU()) if rectifies else linear
    return whole.to(torch.float32).requires_grad_(requires_grad=False)


def _weights(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            return {"weight": opened.get_tensor("linear.weight")}
    content = torch.load(file, map_location="cpu", weights_only=True)
    return {name.removeprefix("linear."): content[name] for name in content if name.removeprefix("linear.") in _NAMES}
