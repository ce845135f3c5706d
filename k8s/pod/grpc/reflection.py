"""Describe a server's services to tools such as grpcurl and ghz."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

_V1 = "grpc.reflection.v1.ServerReflection"
"""The library does not know it; its messages are v1alpha's, byte for byte."""


class Server(Protocol):
    """What takes services: a grpc.aio.Server is one."""

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler], /) -> None:
        """Serve what these serve."""
        ...


class _Descriptors:
    """The pool of all descriptors, which by itself finds no methods: tools look one up before they call it."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802 - the pool's name
        """The file that declares it. Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            return self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def enable(server: Server, services: Iterable[str]) -> None:
    """Answer reflection v1, for which newer clients ask first, and v1alpha."""
    pool = cast("descriptor_pool.DescriptorPool", _Descriptors())
    servicer = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME), pool)
    answer = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo, ServerReflectionRequest.FromString, ServerReflectionResponse.SerializeToString
    )
    for name in (_V1, reflection.SERVICE_NAME):
        handler = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": answer})
        server.add_generic_rpc_handlers((handler,))
