"""The configuration of modules after the pooling: every key is known, or refused.

A key, and a missing key, means the same as in sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.engines.pooling import (
    NAMES,
    OF_TEXT,
    ReadLayer,
    check_names,
    check_normalize,
    flag,
    read_config,
    size_of,
)
from modelserver.errors import CannotStart

if TYPE_CHECKING:
    from torch import nn

_ACTIVATIONS = frozenset(
    ("ELU", "GELU", "Identity", "LeakyReLU", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softsign")
) | {"Tanh"}
"""The activations of torch.nn without parameters."""
_RECTIFIERS = frozenset(("ReLU", "ReLU6"))
"""Activations behind which a row may be all zero."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer and its activation, a name of torch.nn's."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str
    residual: bool

    @property
    def rectifies(self) -> bool:
        return self.activation in _RECTIFIERS

    def load(self) -> nn.Module:
        from modelserver.wings.modules.weights import dense  # noqa: PLC0415 - loads torch

        shape = self.inputs, self.outputs
        return dense(self.folder, *shape, bias=self.bias, activation=self.activation, residual=self.residual)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer normalization, with weights."""

    folder: Path
    inputs: int
    outputs: None = None
    rectifies: bool = False

    def load(self) -> nn.Module:
        from modelserver.wings.modules.weights import layer_norm  # noqa: PLC0415 - loads torch

        return layer_norm(self.folder, self.inputs)


@dataclass(frozen=True, slots=True)
class Normalize:
    """Normalization to unit length before other modules: at the end the aggregator does it."""

    folder: Path
    inputs: None = None
    outputs: None = None
    rectifies: bool = False

    def load(self) -> nn.Module:
        from modelserver.wings.modules.weights import normalize  # noqa: PLC0415 - loads torch

        return normalize()


def read_dense(folder: Path, of: str = OF_TEXT) -> Dense:
    file = folder / "config.json"
    config = read_config(folder, ("in_features", "out_features", "bias", "activation_function", "use_residual", *NAMES))
    check_names(config, file, of)
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = str(activation).rpartition(".")[2]
    if not str(activation).startswith("torch.nn.") or name not in _ACTIVATIONS:
        raise CannotStart(
            f"{file} has the activation {activation}: those of torch.nn that are computed are"
            f" {', '.join(sorted(_ACTIVATIONS))}"
        )
    return Dense(
        folder=folder,
        inputs=size_of(config, "in_features", file),
        outputs=size_of(config, "out_features", file),
        bias=flag(config, "bias", file, default=True),
        activation=name,
        residual=flag(config, "use_residual", file),
    )


def read_layer_norm(folder: Path) -> LayerNorm:
    return LayerNorm(folder, size_of(read_config(folder, ("dimension",)), "dimension", folder / "config.json"))


def read_normalize(folder: Path, of: str = OF_TEXT) -> Normalize:
    check_normalize(folder, of)
    return Normalize(folder)


LAYERS: Mapping[str, ReadLayer] = {"Dense": read_dense, "LayerNorm": read_layer_norm, "Normalize": read_normalize}
"""The readers by sentence-transformers' classes."""
