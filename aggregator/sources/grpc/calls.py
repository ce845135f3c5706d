"""Receive the messages of gRPC calls, and end calls with their status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar, cast

import grpc.aio

from aggregator.errors import InvalidRequest
from aggregator.request.request import Failure, Request
from aggregator.sources.calls.calls import Call, Calls, Read, embedding, failure_of
from aggregator.sources.calls.load import Room
from aggregator.sources.grpc.reading import NO_MESSAGE, Context, Reading, abort
from aggregator.sources.parsing import head
from aggregator.sources.response import MAX_ECHOED, fill_status
from protos.embedding.v1 import embedding_pb2 as pb

T = TypeVar("T")


@dataclass(eq=False)
class GrpcCalls(Calls):
    """Calls whose messages gRPC receives."""

    reading: Reading = field(kw_only=True)

    def deadline_s(self, context: Context) -> float:
        remaining_s = cast("float | None", context.time_remaining())  # the stubs know no call without a deadline
        return inf if remaining_s is None else self.clock() + remaining_s

    async def receive(
        self, context: Context, call_of_room: Callable[[Room], Call] = Call, read: Read = embedding
    ) -> Request:
        """The request of a call with one message. Raises TokenbatchError."""
        identity = self.callers.identify(context)
        call = call_of_room(self.enter(identity.holders))
        data = await self.reading.message(context, identity.holders[-1])
        if data is None:
            raise InvalidRequest(NO_MESSAGE)
        return await self.take(data, identity, self.deadline_s(context), call, read)


def answering(serve: Callable[[Context], Awaitable[T | Failure]]) -> Callable[[object, Context], Awaitable[T]]:
    """The handler of a method: a failure that `serve` returns or raises ends the call with its status."""

    async def answer(messages: object, context: Context) -> T:
        del messages  # it refers to the call, and would make a cycle with it: see `abort`
        try:
            outcome = await serve(context)
        except grpc.aio.BaseError:
            raise  # the call is over
        except Exception as error:  # noqa: BLE001 - `failure_of` logs what is not expected
            outcome = failure_of(error)
        if not isinstance(outcome, Failure):
            return outcome
        ending = abort(context, outcome)
        del context
        return await ending

    return answer


def refusal(data: bytes, failure: Failure) -> pb.EmbedResponse:
    """The answer on a stream to a message that could not become a request."""
    asked = head(data)
    answer = pb.EmbedResponse(request_id=asked.request_id[:MAX_ECHOED], model=asked.model[:MAX_ECHOED])
    fill_status(answer.status, failure)
    return answer
