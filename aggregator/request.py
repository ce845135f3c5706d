"""A request as every intake sees it: parsed from the public message, validated by one set of rules."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

from google.protobuf.message import DecodeError

from aggregator.core.admission import Admission
from aggregator.core.outlook import Outlook
from aggregator.core.query import Entry, Priority, Query, Source
from aggregator.core.queue import TokenQueue
from aggregator.core.steering import Promise
from aggregator.errors import Code, InvalidRequest, TokenbatchError
from aggregator.vectors import Vector
from aggregator.wire_scan import check
from protos.embedding.v1 import embedding_pb2 as pb

_PRIORITIES: dict[int, Priority] = {
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_DEFAULT: Priority.DEFAULT,
    pb.PRIORITY_BACKGROUND: Priority.BACKGROUND,
}
_MAX_TOKEN_ID = 2**31 - 1
_PACKED_AT_ONCE = 8192
_FLOAT32, _NO_TRUNCATION = int(pb.ENCODING_FLOAT32), int(pb.TRUNCATE_NONE)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one input has no vector; `retry_after_s` is 0 where no pause is known to help.

    `attempts`: how often it was tried.
    """

    code: Code
    message: str
    retryable: bool = False
    retry_after_s: float = 0.0
    attempts: int = 1

    @classmethod
    def of(cls, error: TokenbatchError) -> Failure:
        """The failure that tells a sender of `error`."""
        return cls(error.code, str(error), error.retriable, error.retry_after_s)


Outcome = Vector | Failure


@dataclass(frozen=True, slots=True)
class Options:
    """What the sender asks of every vector of a request; `asked` is how, before a model made it definite."""

    dimensions: int = 0
    encoding: int = pb.ENCODING_FLOAT32
    normalize: bool | None = None
    truncate: int = pb.TRUNCATE_NONE
    input_type: int = pb.INPUT_TYPE_UNSPECIFIED
    asked: Options | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a topic or listener says for requests that say nothing, and what it limits."""

    source: Source
    model: str
    priority: Priority
    tenant: str = ""
    max_inputs: int = 1024
    trusts_tenant: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Where requests that were queued together, at `queued_s`, occupy something: their model's bounds and its queue."""

    admission: Admission
    outlook: Outlook
    queue: TokenQueue
    promise: Promise | None
    queued_s: float


@dataclass(slots=True, eq=False)
class Request:
    """One request until its last input settles.

    `inputs` hold texts, or token ids as little-endian int32. `outcomes` has one place per input; `remaining`
    counts the empty ones. `origin` is what the answer goes back to: a Kafka delivery, or a waiting call.
    From admission until its answer is acknowledged it occupies `token_count` tokens where `held` says; `places` are
    its inputs' in the queue, kept only where a caller may go away (gRPC). Once `admitted` it is not refused again for
    want of room. `given_up`: nobody waits for it any more.
    Times are monotonic seconds; a deadline of `inf` means none.
    """

    request_id: str
    model: str
    model_revision: str
    inputs: Sequence[str | bytes]
    options: Options
    priority: Priority
    source: Source
    tenant: str
    received_s: float
    deadline_s: float
    origin: Any
    outcomes: list[Outcome | None]
    remaining: int
    failed: bool = False
    traceparent: bytes | None = None
    held: Held | None = None
    token_count: int = 0
    places: Sequence[tuple[Query, Entry]] = ()
    admitted: bool = False
    given_up: bool = False

    def settle_input(self, index: int, outcome: Outcome) -> bool:
        """Record one input's outcome; True when that was the last one missing."""
        assert self.outcomes[index] is None, "An input settled twice. This is a bug."
        self.outcomes[index] = outcome
        self.failed = self.failed or isinstance(outcome, Failure)
        self.remaining -= 1
        return self.remaining == 0

    @property
    def code(self) -> Code:
        """OK when every input has a vector, else the first failure's code."""
        failure = self.failure
        return Code.OK if failure is None else failure.code

    @property
    def failure(self) -> Failure | None:
        """The first input's failure; None when every input has a vector."""
        if not self.failed:
            return None
        return next(outcome for outcome in self.outcomes if isinstance(outcome, Failure))

    def hold(self, held: Held, token_count: int) -> None:
        """Occupy so many tokens, until `release`."""
        self.held = held
        self.token_count = token_count
        held.admission.charge(self.source, token_count, self.tenant)
        held.outlook.charge(self.priority, self.tenant, self.deadline_s, token_count)

    def release(self) -> None:
        """Give back what is held; once. Places lead back to their request: kept, both would wait for a collection."""
        held, self.held = self.held, None
        self.places = ()
        if held is not None:
            held.admission.release(self.source, self.token_count, self.tenant)
            held.outlook.release(self.priority, self.tenant, self.deadline_s, self.token_count)

    def account(self, now_s: float) -> None:
        """Tell the promise it was served under, if any, how long it took, and how much of that was overhead."""
        if self.held is None or self.held.promise is None:
            return
        batches = [outcome.batch for outcome in self.outcomes if isinstance(outcome, Vector)]
        if batches:
            last = max(batches, key=lambda batch: batch.done_s)
            overhead_s = self.held.queued_s - self.received_s + last.carried_s + now_s - last.done_s
            self.held.promise.answered(now_s - self.received_s, overhead_s)

    def restart(self) -> None:
        """Forget every vector, and what the revision decided, so that no answer mixes revisions; failures stay."""
        self.outcomes = [outcome if isinstance(outcome, Failure) else None for outcome in self.outcomes]
        self.remaining = self.outcomes.count(None)
        self.options = self.options.asked or self.options

    def overrule(self, failure: Failure) -> None:
        """Its answer, whatever it was, could not be given: that is what became of every input."""
        self.outcomes = [failure] * len(self.outcomes)
        self.failed = True

    def fail(self, failure: Failure) -> bool:
        """Fail every input that has no outcome yet; True when there was one."""
        if not self.remaining:
            return False
        self.outcomes = [failure if outcome is None else outcome for outcome in self.outcomes]
        self.failed = True
        self.remaining = 0
        return True


def decode(data: bytes, max_inputs: int) -> pb.EmbedRequest:
    """The message in these bytes; raises InvalidRequest for one that holds too much, or is none."""
    try:
        check(data, max_inputs)
        return pb.EmbedRequest.FromString(data)
    except DecodeError:
        raise InvalidRequest("the message is no embedding.v1.EmbedRequest: it cannot be decoded") from None


def parse(
    message: pb.EmbedRequest,
    defaults: Defaults,
    origin: Any,
    *,
    received_s: float,
    wall_s: float,
    deadline_s: float = inf,
) -> Request:
    """Turn a public message into a Request.

    `wall_s` is the wall clock (Unix seconds) at `received_s`; `deadline_s` is a deadline from outside the
    message (gRPC's own). Raises InvalidRequest where the whole request is at fault; an input at fault only has
    its own Failure.
    """
    inputs = message.inputs
    remaining = len(inputs)
    if not 0 < remaining <= defaults.max_inputs:
        limit = "at least one input is needed" if not remaining else f"at most {defaults.max_inputs} are taken"
        raise InvalidRequest(f"{remaining} inputs: {limit}")
    values: list[str | bytes] = [inputs[0].text] if remaining == 1 else [item.text for item in inputs]
    if message.HasField("expire_time"):
        expire_s = message.expire_time.seconds + message.expire_time.nanos * 1e-9
        deadline_s = min(deadline_s, received_s + expire_s - wall_s)
    outcomes: list[Outcome | None] = [None] * remaining
    if not all(values):  # token ids, or nothing at all
        values, outcomes, remaining = _values(inputs)
    return Request(
        request_id=message.request_id or uuid.uuid4().hex,
        model=message.model or defaults.model,
        model_revision=message.model_revision,
        inputs=values,
        options=_options(message),
        priority=_priority(message.priority, defaults.priority),
        source=defaults.source,
        tenant=(defaults.trusts_tenant and message.tenant) or defaults.tenant,
        received_s=received_s,
        deadline_s=deadline_s,
        origin=origin,
        outcomes=outcomes,
        remaining=remaining,
        failed=remaining < len(outcomes),
    )


def _values(inputs: Sequence[pb.Input]) -> tuple[list[str | bytes], list[Outcome | None], int]:
    """Each input's text or packed ids, the outcome it has already when it holds neither, and how many have none."""
    values: list[str | bytes] = []
    outcomes: list[Outcome | None] = []
    for item in inputs:
        value = item.text or _packed_ids(item.token_ids.ids)
        failure = None if isinstance(value, str) or value else _EMPTY
        if value is None:
            failure, value = _BAD_ID, b""
        values.append(value)
        outcomes.append(failure)
    return values, outcomes, outcomes.count(None)


_EMPTY = Failure(Code.INVALID_ARGUMENT, "the input is empty: give text or token ids")
_BAD_ID = Failure(Code.INVALID_ARGUMENT, "a token id does not fit 31 bits")


def _packed_ids(ids: Sequence[int]) -> bytes | None:
    if not ids:
        return b""
    if len(ids) > _PACKED_AT_ONCE:  # so that other threads have their turns
        pieces = [_packed_ids(ids[start : start + _PACKED_AT_ONCE]) for start in range(0, len(ids), _PACKED_AT_ONCE)]
        return None if None in pieces else b"".join(piece for piece in pieces if piece)
    if max(ids) > _MAX_TOKEN_ID:
        return None
    return struct.pack(f"<{len(ids)}i", *ids)


def _priority(value: int, default: Priority) -> Priority:
    if not value:
        return default
    priority = _PRIORITIES.get(value)
    if priority is None:
        raise InvalidRequest(f"priority {value} is not known: use one of {list(_PRIORITIES)}")
    return priority


def _options(message: pb.EmbedRequest) -> Options:
    return _checked_options(
        message.dimensions,
        message.encoding or _FLOAT32,
        message.normalize if message.HasField("normalize") else None,
        message.truncate or _NO_TRUNCATION,
        message.input_type,
    )


@lru_cache(maxsize=1024)
def _checked_options(
    dimensions: int,
    encoding: int,
    normalize: bool | None,  # noqa: FBT001 - three values, and lru_cache is quicker by position
    truncate: int,
    input_type: int,
) -> Options:
    for name, value, enum in (
        ("encoding", encoding, pb.Encoding),
        ("truncate", truncate, pb.Truncate),
        ("input_type", input_type, pb.InputType),
    ):
        if value not in enum.values():
            raise InvalidRequest(f"{name} {value} is not known: use one of {', '.join(enum.keys())}")
    return Options(dimensions, encoding, normalize, truncate, input_type)
