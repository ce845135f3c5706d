"""The linear layer of each token with its weights, float32 on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import nn

from modelserver.errors import CannotStart

if TYPE_CHECKING:
    from modelserver.wings.token_vectors.layers import Projection


def projection(layer: Projection) -> nn.Module:
    """Raises CannotStart."""
    linear = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
    try:
        linear.load_state_dict(_weights(layer), strict=True)
    except Exception as error:
        said = " ".join(str(error).split())[:400]
        raise CannotStart(
            f"the weights of {layer.folder / layer.file} cannot be read: {type(error).__name__}: {said}"
        ) from error
    whole: nn.Module = nn.Sequential(linear, nn.ReLU()) if layer.rectifies else linear
    return whole.to(torch.float32).requires_grad_(requires_grad=False)


def _weights(layer: Projection) -> dict[str, torch.Tensor]:
    file = layer.folder / layer.file
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            return {"weight": opened.get_tensor("linear.weight")}
    content = torch.load(file, map_location="cpu", weights_only=True)
    return {name.removeprefix("linear."): content[name] for name in content if name.removeprefix("linear.") in _NAMES}


_NAMES = frozenset(("weight", "bias"))
