"""The modules after the pooling, with their weights, float32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from modelserver.errors import CannotStart


def dense(folder: Path, inputs: int, outputs: int, *, bias: bool, activation: str, residual: bool) -> nn.Module:
    """Raises CannotStart, as `layer_norm` does."""
    return _with_weights(_Dense(inputs, outputs, bias=bias, activation=activation, residual=residual), folder)


def layer_norm(folder: Path, size: int) -> nn.Module:
    return _with_weights(_Norm(size), folder)


def normalize() -> nn.Module:
    return _Unit()


class _Unit(nn.Module):  # type: ignore[misc]
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(vectors, dim=-1)


class _Dense(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, *, bias: bool, activation: str, residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation = getattr(nn, activation)()
        self.is_residual = residual
        if residual and inputs != outputs:
            self.residual = nn.Linear(inputs, outputs, bias=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.activation(self.linear(vectors))
        if not self.is_residual:
            return found
        return found + (self.residual(vectors) if hasattr(self, "residual") else vectors)


class _Norm(nn.Module):  # type: ignore[misc]
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)

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
