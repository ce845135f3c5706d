"""The device that graphs run on: buffers, capture, and a queue of copies and replays; CUDA, or a fake one of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from modelserver.wings.direct.graphs.layout import Parts

Tensors = Parts[torch.Tensor]
_WARM_UPS = 2
"""Runs before a capture, in which libraries allocate what they keep and kernels are compiled and chosen."""


class Body(Protocol):
    """The computation that a graph holds, over buffers that stay where they are."""

    def attend(self, inputs: Tensors, longest: int) -> Any:
        """The attention's metadata, which refers to `inputs`; not part of the graph."""
        ...

    def compute(self, inputs: Tensors, attention: Any) -> torch.Tensor:
        """Vectors or logits, float32 [queries, dimensions]."""
        ...


class Device(Protocol):
    """A device whose work runs in the order of the calls, and some time after them. Engine's thread, but `pinned`."""

    def buffer(self, size: int) -> torch.Tensor:
        """Zeros on the device, int32 [size]."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zeros on the host that the device reads and writes by itself."""
        ...

    def capture(self, body: Body, inputs: Tensors, longest: int) -> tuple[Callable[[], None], torch.Tensor]:
        """Record the computation over `inputs`: a call that queues it again, and the tensor that it writes."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy."""
        ...

    def mark(self) -> Callable[[], None]:
        """Mark the end of what is queued: a call that waits for it, and leaves the interpreter's lock meanwhile."""
        ...

    def drain(self) -> None:
        """Wait for everything, after a failure. Raises what the device raises."""
        ...

    def free_bytes(self) -> int: ...


class Cuda:
    """A CUDA stream of its own, and one pool of memory for all graphs: they run one at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def buffer(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self._device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def capture(self, body: Body, inputs: Tensors, longest: int) -> tuple[Callable[[], None], torch.Tensor]:
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            attention = body.attend(inputs, longest)
            for _ in range(_WARM_UPS):
                body.compute(inputs, attention)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            out = body.compute(inputs, attention)

        def replay(_kept: Any = attention) -> None:  # kernels read the metadata's tensors at each replay
            with torch.cuda.stream(self._stream):
                graph.replay()

        return replay, out

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Callable[[], None]:
        event = torch.cuda.Event()
        event.record(self._stream)
        wait: Callable[[], None] = event.synchronize
        return wait

    def drain(self) -> None:
        self._stream.synchronize()

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)
