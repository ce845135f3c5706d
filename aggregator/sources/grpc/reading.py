"""Read the messages of calls, as many at a time as memory allows; end a call with its status and a retry delay."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtobufMessage
from google.rpc import error_details_pb2, status_pb2

from aggregator.admission.ledger import Holders
from aggregator.errors import Code, InvalidRequest
from aggregator.observability.calls import CallTelemetry, RpcCall
from aggregator.observability.metrics import Limit
from aggregator.request.kind import Kind
from aggregator.request.request import Failure, Request
from aggregator.sources.calls.callers import CertificateNames, Identity, check_repeated
from aggregator.sources.calls.calls import Call, Calls, failure_of
from aggregator.sources.calls.load import Load, Room
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.wire.decode import SMALL_BYTES, decode_embed, head
from aggregator.sources.wire.encode import MAX_ECHOED, fill_status
from k8s.pod.grpc.server import Handlers
from protos.embedding.v1 import embedding_pb2 as pb

T = TypeVar("T")
ReadFor = Callable[[Call, bytes, Identity], tuple[Any, Call]]
"""Decodes the message of a call."""
Context = grpc.aio.ServicerContext[bytes, bytes]

DETAILS_KEY = "grpc-status-details-bin"
_MOST_DESCRIBED = 256
"""Characters of a message that is repeated in the details: the metadata of a status may have only 8 KiB."""
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


async def abort(context: Context, failure: Failure) -> NoReturn:
    """End the call; google.rpc.RetryInfo and BadRequest, with the field at fault, ride along.

    gRPC keeps the exception with its traceback, and the call keeps the exception: a frame there that leads back to the
    call, or to its message, makes a cycle that waits for the collector. This one does not; nor must its callers'.
    """
    ending = context.abort(_STATUS[failure.code], failure.message, _details(failure))
    del context
    await ending
    raise AssertionError("An ended call continues. This is a bug.")


def _details(failure: Failure) -> tuple[tuple[str, bytes], ...]:
    """The metadata grpc-status-details-bin."""
    details: list[ProtobufMessage] = []
    if failure.retry_after_s:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromNanoseconds(int(failure.retry_after_s * 1e9))
        details.append(info)
    if failure.field:
        wrong = error_details_pb2.BadRequest()
        wrong.field_violations.add(field=failure.field, description=failure.message[:_MOST_DESCRIBED])
        details.append(wrong)
    if not details:
        return ()
    status = status_pb2.Status(code=failure.code, message=failure.message)
    for each in details:
        status.details.add().Pack(each)
    return ((DETAILS_KEY, status.SerializeToString()),)


_TICK_S = 0.1  # a message that is sent at once arrives within it
_SLOW_TICKS = 2
"""A message that takes this many ticks is slow. Ticks, not seconds: a late event loop makes no message slow."""
_PATIENCE_TICKS = 50  # 5 s, in which a line of 7 Mbit/s delivers 4 MiB
_PATIENCE_S = _PATIENCE_TICKS * _TICK_S
_MOST_KNOWN = 4096  # connections may be new ones each time: bounds the memory
_AT_DEADLINE_S = 0.1
"""A caller cancels its call at the deadline, by its own clock, before or after this side's has passed."""
_OK = Code.OK.name
NO_MESSAGE = "the call has no message"


class _Place:
    """One message that is being received, or that waits for its turn."""

    __slots__ = ("context", "ended", "holder", "size_class", "ticks", "turn")

    def __init__(self, context: Context, holder: str, size_class: _SizeClass) -> None:
        self.context = context
        self.holder = holder
        self.size_class = size_class
        self.ticks = 0
        self.ended = False
        self.turn: asyncio.Future[None] | None = None


class _SizeClass:
    """A number of places, and a queue for them: the holders take turns."""

    def __init__(self, places: int) -> None:
        self.reading: dict[_Place, None] = {}
        self._places = places
        self._waiting: dict[str, dict[_Place, None]] = {}

    @property
    def has_room(self) -> bool:
        return len(self.reading) < self._places

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def enter(self, place: _Place) -> None:
        self.reading[place] = None
        place.size_class = self

    async def wait(self, place: _Place) -> None:
        place.turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(place.holder, {})[place] = None
        await place.turn

    def leave(self, place: _Place) -> None:
        if place in self.reading:
            del self.reading[place]
        elif places := self._waiting.get(place.holder):
            places.pop(place, None)
            if not places:
                del self._waiting[place.holder]
        while self._waiting and self.has_room:
            self._next()

    def _next(self) -> None:
        holder = next(iter(self._waiting))
        places = self._waiting.pop(holder)
        place = next(iter(places))
        del places[place]
        if places:
            self._waiting[holder] = places  # behind all others
        if place.turn is not None and not place.turn.done():
            place.turn.set_result(None)
            self.enter(place)


class Reading:
    """The places for messages that are being received, in three classes: small, large and slow.

    A message is received in the class of its holder's previous one: the next is most likely alike.
    """

    def __init__(self, places: int, load: Load) -> None:
        each = max(1, places // 3)
        self._small, self._large, self._slow = (_SizeClass(each) for _ in range(3))
        self._load = load
        self._classes: dict[str, _SizeClass] = {}
        self._ticking = False
        self._ending: set[asyncio.Task[None]] = set()

    async def message(self, context: Context, holder: str) -> bytes | None:
        """The next message of a call, counted for `holder`; None at the end of the caller's messages.

        Raises Overloaded when no place came free in time, and grpc.aio.AbortError when the call was ended because
        its message did not arrive in time.
        """
        size_class = self._classes.get(holder, self._large)
        place = _Place(context, holder, size_class)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        try:
            if size_class.has_room:
                size_class.enter(place)
            else:
                await self._turn(size_class, place)
            message = cast("object", await context.read())  # bytes, or EOF
        finally:
            place.size_class.leave(place)
        if message is grpc.aio.EOF:
            return None
        data = cast("bytes", message)
        if place.ticks < _SLOW_TICKS:
            self._expect(holder, self._small if len(data) <= SMALL_BYTES else self._large)
        return data

    async def _turn(self, size_class: _SizeClass, place: _Place) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await size_class.wait(place)
        except TimeoutError:
            raise self._load.refusal(Limit.ARRIVING) from None

    def _expect(self, holder: str, size_class: _SizeClass) -> None:
        if len(self._classes) >= _MOST_KNOWN and holder not in self._classes:
            self._classes.clear()
        self._classes[holder] = size_class

    def _tick(self) -> None:
        reading = [*self._small.reading, *self._large.reading, *self._slow.reading]
        for place in reading:
            place.ticks += 1
            if place.ended:
                continue
            if place.ticks >= _PATIENCE_TICKS:
                self._end(place, Failure.of(self._load.refusal(Limit.SILENT)))
            elif place.ticks >= _SLOW_TICKS and place.size_class is not self._slow:
                self._make_way(place)
        self._ticking = bool(reading)
        if self._ticking:
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _make_way(self, place: _Place) -> None:
        """Move a slow message to the slow class, so that it keeps no place from others."""
        self._expect(place.holder, self._slow)
        if self._slow.has_room:
            place.size_class.leave(place)
            self._slow.enter(place)
        elif place.size_class.is_waited_for:
            self._end(place, Failure.of(self._load.refusal(Limit.ARRIVING)))

    def _end(self, place: _Place, failure: Failure) -> None:
        """End its call from outside: `message` then raises there."""
        place.ended = True
        ending = asyncio.create_task(_abort(place.context, failure), name="end a call without a message")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def _abort(context: Context, failure: Failure) -> None:
    with suppress(grpc.aio.BaseError):  # it may have ended by itself
        await abort(context, failure)


def read_embed(call: Call, data: bytes, identity: Identity) -> tuple[pb.EmbedRequest, Call]:
    """Decode a message for embeddings. Raises InvalidRequest."""
    return decode_embed(data, identity.defaults.max_inputs), call


@dataclass(eq=False)
class GrpcCalls(Calls):
    """Calls whose messages gRPC receives. `dimensions`: of a model's vectors, 0 if no server told."""

    reading: Reading = field(kw_only=True)
    dimensions: Callable[[str], int] = field(default=lambda _: 0, kw_only=True)

    def deadline_s(self, context: Context) -> float:
        remaining_s = cast("float | None", context.time_remaining())  # the stubs know no call without a deadline
        return inf if remaining_s is None else self.clock() + remaining_s

    def enter(self, context: Context) -> tuple[Identity, Room]:
        """The caller, and room for its call. Raises TokenbatchError."""
        identity = self.identify(context)
        return identity, self.room(identity.holders)

    def identify(self, context: Context) -> Identity:
        """Raises Unauthenticated or InvalidRequest."""
        pairs = context.invocation_metadata() or ()
        metadata = dict(pairs)
        if len(metadata) < len(pairs):
            check_repeated([name for name, count in Counter(name for name, _ in pairs).items() if count > 1])
        return self.callers.identify(partial(_text, metadata), context.peer, partial(_certificate, context))

    def room(self, holders: Holders) -> Room:
        """Room for a call until the task that serves it ends: its client may read the answer late, or never.

        Raises Overloaded.
        """
        room = self.load.enter(holders)
        task = asyncio.current_task()
        assert task is not None, "A call is served by no task. This is a bug."
        task.add_done_callback(room.leave)
        return room

    async def receive(
        self,
        context: Context,
        new_call: Callable[[Room], Call] = Call,
        read: ReadFor = read_embed,
        kind: Kind = EMBEDDING,
    ) -> Request:
        """The request of a call with one message. Raises TokenbatchError."""
        identity, room = self.enter(context)
        data = await self.reading.message(context, identity.holders[-1])
        if data is None:
            raise InvalidRequest(NO_MESSAGE)
        room.widen(len(data))
        asked = kind, data, identity, self.deadline_s(context), room, partial(read, new_call(room))
        return self.take(*asked) if len(data) <= SMALL_BYTES else await self.take_large(*asked)


def _text(metadata: Mapping[str, str | bytes], name: str) -> str:
    value = metadata.get(name, "")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _certificate(context: Context) -> CertificateNames:
    names = context.auth_context()
    return CertificateNames(
        names.get("peer_spiffe_id", ()), names.get("x509_common_name", ()), names.get("peer_dns", ())
    )


class RpcService(ABC):
    """A gRPC service: its name, and a handler for each of its methods."""

    name: ClassVar[str]

    def __init__(self, calls: GrpcCalls, telemetry: CallTelemetry) -> None:
        self._calls = calls
        self._telemetry = telemetry

    @abstractmethod
    def handlers(self) -> Handlers:
        """By method; they pass messages as bytes, and read none before the call asks for it.

        On the wire, a unary call is a stream of one message.
        """

    def end_streams(self) -> None:  # noqa: B027 - most have none
        """The server stops: end calls that stay open once what they have read is answered, and accept no new one."""

    def method(self, name: str) -> RpcMethod:
        return RpcMethod(self._telemetry, self.name, name)


class RpcMethod:
    """A method of a service, whose calls are traced and measured."""

    def __init__(self, telemetry: CallTelemetry, service: str, name: str) -> None:
        self._telemetry = telemetry
        self._method = f"{service}/{name}"

    def open(self, context: Context) -> RpcCall:
        trace = ""
        if self._telemetry.tracing.enabled:
            trace = _text(dict(context.invocation_metadata() or ()), "traceparent")
        return self._telemetry.rpc(self._method, trace)


def answering(
    serve: Callable[[Context], Awaitable[T | Failure]], method: RpcMethod | None = None
) -> Callable[[object, Context], Awaitable[T]]:
    """The handler of a method: a failure that `serve` returns or raises ends the call with its status."""

    async def answer(messages: object, context: Context) -> T:
        del messages  # it refers to the call, and would make a cycle with it: see `abort`
        call = method.open(context) if method is not None else None
        try:
            outcome = await serve(context)
        except (grpc.aio.BaseError, asyncio.CancelledError):  # the call is over
            if call is not None:
                call.end(_ended_with(context))
            raise
        except Exception as error:  # noqa: BLE001 - `failure_of` logs what is not expected
            outcome = failure_of(error)
        if call is not None:
            call.end(outcome.code.name if isinstance(outcome, Failure) else _OK)
        if not isinstance(outcome, Failure):
            return outcome
        ending = abort(context, outcome)
        del context
        return await ending

    return answer


def _ended_with(context: Context) -> str:
    """The status of a call that is over: set by this side, or its deadline has passed, or its caller went away."""
    code = cast("grpc.StatusCode | int | None", context.code())
    if isinstance(code, int):
        code = _STATUS.get(code)
    if code is not None and code is not grpc.StatusCode.OK:
        return code.name
    remaining_s = cast("float | None", context.time_remaining())
    return (Code.CANCELLED if remaining_s is None or remaining_s > _AT_DEADLINE_S else Code.DEADLINE_EXCEEDED).name


def refusal(data: bytes, failure: Failure) -> pb.EmbedResponse:
    """The answer on a stream to a message that could not become a request."""
    asked = head(data)
    answer = pb.EmbedResponse(request_id=asked.request_id[:MAX_ECHOED], model=asked.model[:MAX_ECHOED])
    fill_status(answer.status, failure)
    return answer
