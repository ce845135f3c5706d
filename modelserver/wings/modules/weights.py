"""The modules after the pooling, with their weights, float32 on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import nn

from modelserver.errors import CannotStart

if TYPE_CHECKING:
    from modelserver.wings.modules.layers import Dense, LayerNorm


def dense(layer: Dense) -> nn.Module:
    """Raises CannotStart, as `layer_norm` does."""
    return _with_weights(_Dense(layer), layer.folder)


def layer_norm(layer: LayerNorm) -> nn.Module:
    return _with_weights(_Norm(layer), layer.folder)


def normalize() -> nn.Module:
    return _Unit()


class _Unit(nn.Module):  # type: ignore[misc]
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(vectors, dim=-1)


class _Dense(nn.Module):  # type: ignore[misc]
    def __init__(self, layer: Dense) -> None:
        super().__init__()
        self.linear = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
        self.activation = getattr(nn, layer.activation)()
        self.is_residual = layer.residual
        if layer.residual and layer.inputs != layer.outputs:
            self.residual = nn.Linear(layer.inputs, layer.outputs, bias=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.activation(self.linear(vectors))
        if not self.is_residual:
            return found
        return found + (self.residual(vectors) if hasattr(self, "residual") else vectors)


class _Norm(nn.Module):  # type: ignore[misc]
    def __init__(self, layer: LayerNorm) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(layer.inputs)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(vectors)
        return normed


def _with_weights(module: nn.Module, folder: Path) -> nn.Module:
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        weights = load_file(safe) if safe.is_file() else torch.load(pickled, map_location="cpu", weights_only=True)
        module.load_state_dict(weights, strict=True)
    except Exception as error:
        raise CannotStart(
            f"the weights of {folder} cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        ) from error
    return module.to(torch.float32).requires_grad_(requires_grad=False)
