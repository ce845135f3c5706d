"""Every way a batch or a sequence can be refused or fail here, each with the gRPC code that its sender sees.

ModelServerError
├─ BatchRefused          before the engine saw it
│  ├─ InvalidBatch       not a batch at all, or larger than a step
│  ├─ TooLong            a prompt that leaves no room for a text
│  ├─ WrongModel         another model or revision serves here
│  ├─ WrongTask          it embeds and is asked to generate, or the other way round
│  ├─ QueueFull          too many tokens wait already; another server, or later
│  └─ NotServing         starting, rebuilding or stopping
├─ StepFailed            the engine raised on this batch, and can go on
├─ EngineBroken          the engine raised and cannot go on; it is rebuilt
└─ CannotStart           settings, installation or model; the process exits with a clear line
"""

from __future__ import annotations

from typing import ClassVar

import grpc


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
    """The engine raised on this batch, and can go on."""


class EngineBroken(ModelServerError):
    """The engine raised and cannot go on."""

    code = grpc.StatusCode.UNAVAILABLE


class CannotStart(ModelServerError):
    """Settings, installation or model do not allow a start; the message says what to do."""
