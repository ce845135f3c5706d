"""A linear layer of each token whose weights lie among others', or in a file of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer, with ReLU behind it where it `rectifies`; `file`: in `folder`, of `linear.weight` or `weight`."""

    folder: Path
    file: str
    inputs: int
    outputs: int
    bias: bool = False
    rectifies: bool = False

    def load(self) -> nn.Module:
        """Raises CannotStart."""
        from modelserver.wings.token_vectors.weights import projection  # noqa: PLC0415 - loads torch

        shape = self.inputs, self.outputs
        return projection(self.folder / self.file, *shape, bias=self.bias, rectifies=self.rectifies)
