"""Devices without CUDA for the graphs of the direct engine: a capture runs the same computation on the same buffers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from modelserver.wings.direct.graphs.device import Body, Tensors

POISON_ID = 2**30
"""No id of any vocabulary: a model that reads one raises."""


class Immediate:
    """Everything happens at once. Before each replay whatever a step must write itself is poisoned."""

    def __init__(self) -> None:
        self._written: list[torch.Tensor] = []
        self.copies = self.replays = 0

    def buffer(self, size: int) -> torch.Tensor:
        return torch.full((size,), POISON_ID, dtype=torch.int32)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros(shape, dtype=dtype)
        if tensor.is_floating_point():
            self._written.append(tensor)
        return tensor

    def capture(self, body: Body, inputs: Tensors, longest: int) -> tuple[Callable[[], None], torch.Tensor]:
        out = self.computed(body, inputs, longest).clone()
        self._written.append(out)

        def replay() -> None:
            self.replays += 1
            self.later(lambda: self._replay(body, inputs, longest, out))

        return replay, out

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.copies += 1
        if source.is_floating_point():
            self.later(lambda: target.copy_(source))
        else:
            self.later(lambda: (target.fill_(POISON_ID), target.copy_(source)))

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def drain(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 0

    def computed(self, body: Body, inputs: Tensors, longest: int) -> torch.Tensor:
        """Metadata is made for each step: attention on a CPU reads it on the host."""
        return body.compute(inputs, body.attend(inputs, longest))

    def later(self, act: Callable[[], Any]) -> None:
        act()

    def _replay(self, body: Body, inputs: Tensors, longest: int, out: torch.Tensor) -> None:
        for tensor in self._written:
            tensor.fill_(torch.nan)
        out.copy_(self.computed(body, inputs, longest))


class Late(Immediate):
    """Work runs in its order but late: some at any call, at the latest when somebody waits for a mark behind it.

    `meanwhile` is called at each call and each wait: what the host does beside the device.
    """

    def __init__(self, seed: int = 0, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.meanwhile = meanwhile
        self._random = random.Random(seed)
        self._pending: list[Callable[[], Any]] = []

    def later(self, act: Callable[[], Any]) -> None:
        self._pending.append(act)
        self._pass(self._random.randrange(len(self._pending) + 1) if self._random.random() < 0.5 else 0)

    def mark(self) -> Callable[[], None]:
        last = self._pending[-1] if self._pending else None

        def wait() -> None:
            self._pass(0)
            if last in self._pending:
                self._run(self._pending.index(last) + 1)

        return wait

    def drain(self) -> None:
        self._run(len(self._pending))

    def _pass(self, count: int) -> None:
        self.meanwhile()
        self._run(count)

    def _run(self, count: int) -> None:
        done, self._pending = self._pending[:count], self._pending[count:]
        for act in done:
            act()
