"""Every way a batch or a sequence can be refused or fail here, each with the gRPC code that its sender sees.

ModelServerError
├─ BatchRefused          before the engine saw it
│  ├─ InvalidBatch       not a batch at all, or larger than a step
│  ├─ TooLong            a prompt that leaves no room for a text
│  ├─ WrongModel         another model or revision serves here
│  ├─ WrongTask          it only generates and should embed or score, or the other way round
│  ├─ QueueFull          too many tokens wait already; another server, or later
│  └─ NotServing         starting, rebuilding or stopping
├─ StepFailed            the engine raised on this batch, and still works
├─ FewerTasks            the engine cannot serve all of its tasks; those that it names are served
├─ EngineBroken          the engine raised and works no longer; it is rebuilt
│  └─ DeviceLost         the GPU refuses every further call; the process ends
└─ CannotStart           settings, installation or model; the process exits with a clear line
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

import grpc

from k8s.pod.errors import StartError
from modelserver.engines.engine import Task

_DEVICE_ERROR = "AcceleratorError"
"""torch's error for CUDA's; its name, because not every engine has torch."""


class ModelServerError(Exception):
    """The root: `code` is what the sender sees."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL


class BatchRefused(ModelServerError):
    """Refused before the engine saw it."""


class InvalidBatch(BatchRefused):
    """Not a batch at all, or larger than a step."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class TooLong(BatchRefused):
    """A prompt that leaves no room for a text."""

    code = grpc.StatusCode.OUT_OF_RANGE


class WrongModel(BatchRefused):
    """Another model or revision serves here."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class WrongTask(BatchRefused):
    """The model here is served for another task."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class QueueFull(BatchRefused):
    """Too many tokens wait already."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class NotServing(BatchRefused):
    """Starting, rebuilding or stopping."""

    code = grpc.StatusCode.UNAVAILABLE


class StepFailed(ModelServerError):
    """The engine raised on this batch, and still works."""


class EngineBroken(ModelServerError):
    """The engine raised and works no longer."""

    code = grpc.StatusCode.UNAVAILABLE


class DeviceLost(EngineBroken):
    """The GPU refuses every further call of this process."""


class FewerTasks(ModelServerError):
    """The engine cannot serve all of its tasks: the model is served for `tasks`, and the message says why."""

    def __init__(self, reason: str, tasks: frozenset[Task]) -> None:
        super().__init__(reason)
        self.tasks = tasks


class CannotStart(StartError, ModelServerError):
    """Settings, installation or model do not allow a start; the message says what to do."""


@contextmanager
def device_errors() -> Generator[None]:
    """Raise DeviceLost for an error after which CUDA refuses every further call: only a new process helps."""
    try:
        yield
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if _DEVICE_ERROR in kinds and "out of memory" not in str(error):
            raise DeviceLost(f"the GPU is lost to this process: {error}") from error
        raise
