"""One forward pass and its pooling for one shape of steps, captured once and replayed over buffers of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from threading import Lock
from weakref import ref

import numpy as np
import torch

from modelserver.engines.engine import IdArray, Matrix
from modelserver.wings.direct.graphs.device import Body, Device
from modelserver.wings.direct.graphs.layout import Parts, Shape

_SETS = 2  # one is read by the step that runs, one is written for the step that is staged


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StepInputs:
    """The inputs of one step, as `Engine.prepare` takes them."""

    token_ids: IdArray
    lengths: IdArray
    second_segments: IdArray | None


class _Use(Enum):
    FREE = auto()
    WRITTEN = auto()
    LAID_OUT = auto()  # and free again when nobody holds the step any more
    RUNNING = auto()


@dataclass(slots=True)
class _InputSet:
    """A pinned input buffer, and the step that it holds."""

    tensor: torch.Tensor
    array: IdArray
    use: _Use = _Use.FREE
    step: ref[StepInputs] | None = None
    number: int = 0

    @property
    def is_free(self) -> bool:
        return self.use is _Use.FREE or (self.use is _Use.LAID_OUT and self.step is not None and self.step() is None)


@dataclass(slots=True)
class InputSets:
    """The pinned buffers of one graph. A step lays its inputs out in one of them while another one runs.

    A step that is staged replaces one that was staged before, whose buffer it takes; should that one run all the same,
    it finds its buffer taken.
    """

    sets: tuple[_InputSet, ...]
    _lock: Lock = field(default_factory=Lock)
    _numbers: int = 0

    def lay_out(self, shape: Shape, step: StepInputs) -> None:
        """Write a step into a buffer; of those that are free, or of the step staged last. Any thread."""
        with self._lock:
            able = [each for each in self.sets if each.use in (_Use.FREE, _Use.LAID_OUT)]
            if not able:
                return
            chosen = max(able, key=lambda each: (each.is_free, each.number))
            self._numbers += 1
            chosen.use, chosen.step, chosen.number = _Use.WRITTEN, ref(step), self._numbers
        shape.lay_out(chosen.array, step.token_ids, step.lengths, step.second_segments)
        with self._lock:
            chosen.use = _Use.LAID_OUT

    def run(self, step: StepInputs) -> torch.Tensor | None:
        """The buffer that holds a step, until it is released; None if it holds another one by now."""
        with self._lock:
            for each in self.sets:
                if each.use is _Use.LAID_OUT and each.step is not None and each.step() is step:
                    each.use = _Use.RUNNING
                    return each.tensor
            return None

    def release(self) -> None:
        """Free the buffers that ran: the device has read them."""
        with self._lock:
            for each in self.sets:
                if each.use is _Use.RUNNING:
                    each.use, each.step = _Use.FREE, None


class Graph:
    """A captured forward pass. A step is one copy in, one replay, one copy out and one event."""

    def __init__(self, shape: Shape, body: Body, device: Device) -> None:
        """Capture it. Raises whatever a model or a device raises that cannot be captured."""
        began_s = time.monotonic()
        self.shape, self._device = shape, device
        pinned = [device.pinned((shape.size,), torch.int32) for _ in range(_SETS)]
        self._sets = InputSets(tuple(_InputSet(tensor, tensor.numpy()) for tensor in pinned))
        self._inputs = device.buffer(shape.size)
        ones = np.ones(min(shape.longest, shape.tokens), np.int32)
        self._inputs.copy_(self._laid_out(StepInputs(ones, np.array([ones.size], np.int32), None)))
        inputs = Parts(*(self._inputs[place] for place in shape.places))
        self._replay, self._out = device.capture(body, inputs, shape.longest)
        self._results = device.pinned(tuple(self._out.shape), self._out.dtype)
        self.took_s = time.monotonic() - began_s

    def prepare(self, step: StepInputs) -> None:
        """Lay a step out that the shape takes; any thread."""
        self._sets.lay_out(self.shape, step)

    def run(self, step: StepInputs) -> Matrix:
        """Vectors or logits float32 [queries, dimensions] of a prepared step. After what it raises: `recover`."""
        source = self._sets.run(step)
        self._device.copy(self._inputs, self._laid_out(step) if source is None else source)
        self._replay()
        count = step.lengths.size
        self._device.copy(self._results[:count], self._out[:count])
        wait = self._device.mark()
        wait()
        self._sets.release()
        return np.array(self._results[:count].numpy(), np.float32)

    def recover(self) -> None:
        """Free the buffers of a step that raised, once the device is done with it."""
        self._sets.release()

    def _laid_out(self, step: StepInputs) -> torch.Tensor:
        """The inputs in memory of their own, which CUDA copies before it goes on."""
        array = np.zeros(self.shape.size, np.int32)
        self.shape.lay_out(array, step.token_ids, step.lengths, step.second_segments)
        return torch.from_numpy(array)
