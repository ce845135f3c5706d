"""End a gRPC call with a status that says what to do: its code, its message and, where known, when to try again."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from aggregator.request import Failure

Context = grpc.aio.ServicerContext[Any, Any]

DETAILS_KEY = "grpc-status-details-bin"
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


async def abort(context: Context, failure: Failure) -> NoReturn:
    """End the call; google.rpc.RetryInfo rides along as grpc-status-details-bin.

    gRPC keeps the exception with its traceback, and the call keeps the exception: a frame there that leads back to the
    call, or to its message, makes a cycle that waits for the collector. This one does not; nor must its callers'.
    """
    ending = context.abort(_STATUS[failure.code], failure.message, _details(failure))
    del context
    await ending
    raise AssertionError("A call that was ended goes on. This is a bug.")


def _details(failure: Failure) -> tuple[tuple[str, bytes], ...]:
    if not failure.retry_after_s:
        return ()
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromNanoseconds(int(failure.retry_after_s * 1e9))
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(code=failure.code, message=failure.message, details=[detail])
    return ((DETAILS_KEY, status.SerializeToString()),)
