"""Common to the forms of all routes: how a completed request is answered, and fields that change no answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec

from aggregator.errors import Code
from aggregator.request.kind import Kind
from aggregator.request.request import Defaults, Failure, Request
from aggregator.request.vector import Vector
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.errors import FieldError, named, renamed
from aggregator.sources.http.exchange import MAX_ID_CHARACTERS
from aggregator.sources.wire.message import PRIORITIES
from protos.embedding.v1 import embedding_pb2 as pb

AskedPriority = int | Literal["interactive", "default", "background"] | None


def priority_of(asked: AskedPriority, default: Priority) -> pb.Priority:
    """A class by its word, or by a number as at vLLM and Cohere: lower first, 0 is the default."""
    if not asked:
        return pb.PRIORITY_UNSPECIFIED
    if isinstance(asked, str):
        return PRIORITIES[Priority[asked.upper()]]
    return PRIORITIES[Priority.INTERACTIVE if asked < 0 else max(default, Priority(min(asked, Priority.BACKGROUND)))]


def checked_id(request_id: str | None) -> str:
    """An id in a body, which comes back in a header. Raises FieldError."""
    if not request_id:
        return ""
    if len(request_id) > MAX_ID_CHARACTERS or not (request_id.isascii() and request_id.isprintable()):
        raise FieldError(f"expected at most {MAX_ID_CHARACTERS} printable characters of ASCII", "request_id")
    return request_id


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message or of an input: no image."""

    type: Literal["text"]
    text: str


_Anything = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"$comment": "any value"})] | msgspec.UnsetType
"""JSON that is not decoded."""


class Ignored(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of other servers that change no vector and no score. Any other field that is not known is refused."""

    cache_salt: _Anything = msgspec.UNSET
    media_io_kwargs: _Anything = msgspec.UNSET
    metadata: _Anything = msgspec.UNSET
    mm_processor_kwargs: _Anything = msgspec.UNSET
    safety_identifier: _Anything = msgspec.UNSET

    def ignored(self) -> str:
        return ", ".join(name for name in Ignored.__struct_fields__ if _is_given(getattr(self, name)))


def _is_given(value: _Anything) -> bool:
    return isinstance(value, msgspec.Raw) and bytes(value) != b"null"


class Answer(ABC):
    """Writes the response to one request.

    `inputs`, `remedy`: its form's names for what it embeds or scores, and for how to truncate that. `names`: its
    fields that have another name in protobuf's messages. `needs_all`: an input that fails leaves no answer.
    """

    needs_all = True
    names: Mapping[str, str] = {}
    inputs = "input"
    remedy = "set truncate_prompt_tokens to -1"
    content_type = "application/json"

    def __init__(self, ignored: str) -> None:
        self._ignored = ignored

    @abstractmethod
    def write(self, request: Request) -> bytes:
        """The body, if each input has a result."""

    @abstractmethod
    def size_bytes(self, request: Request) -> int:
        """About the size of the body, before there are results."""

    def tokens(self, request: Request) -> tuple[int, int]:
        """The tokens of its inputs, and those that were made."""
        return token_count(request), 0

    def takes_long(self, request: Request) -> bool:
        """Whether it is to be written on a thread."""
        return request.kind.is_large(request)

    def headers(self, request: Request) -> dict[str, str]:
        headers = {**_timings(request), "content-type": self.content_type, "x-request-id": request.request_id}
        if self._ignored:
            headers["x-tokenbatch-ignored"] = self._ignored
        return headers

    def failure(self, request: Request) -> Failure | None:
        """The first failure; None when every input has a result. Of several inputs it names the one at fault."""
        failure = request.failure
        if failure is None:
            return None
        index = request.input_at_fault
        if index is None:
            field = self.inputs if failure.field == "inputs" else failure.field
            return renamed(replace(failure, field=field), self.names)
        message = renamed(failure, self.names).message
        if failure.code == Code.OUT_OF_RANGE:
            message = f"{message.partition(';')[0]}; send less, or {self.remedy}"
        if len(request.outcomes) == 1:
            return replace(failure, message=named(message, self.inputs), field=self.inputs)
        return replace(failure, message=f"{self.inputs}[{index}]: {message}", field=f"{self.inputs}[{index}]")


Read = Callable[[bytes, Defaults, str], tuple[Any, Answer]]
"""Reads a body: a message of its kind, and how its request is answered. Raises TokenbatchError."""
Form = tuple[Kind, Read]
"""The bodies of a route."""


def token_count(request: Request) -> int:
    return sum(outcome.token_count for outcome in request.outcomes if isinstance(outcome, Vector))


def _timings(request: Request) -> dict[str, str]:
    """Where the time went, of the input that waited longest, and how many inputs were computed before."""
    slowest: Vector | None = None
    cached = 0
    for outcome in request.outcomes:
        if isinstance(outcome, Vector):
            cached += outcome.batch.cached
            if slowest is None or outcome.queued_s > slowest.queued_s:
                slowest = outcome
    if slowest is None:
        return {}
    batch = slowest.batch
    queued, batched, inference = (f"{s * 1e3:.2f}" for s in (slowest.queued_s, batch.batched_s, batch.inference_s))
    return {
        "server-timing": f"queue;dur={queued}, batch;dur={batched}, inference;dur={inference}",
        "x-tokenbatch-queued-ms": queued,
        "x-tokenbatch-batched-ms": batched,
        "x-tokenbatch-inference-ms": inference,
        **({"x-tokenbatch-cached": f"{cached}"} if cached else {}),
    }
