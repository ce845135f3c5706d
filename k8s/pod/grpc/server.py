"""One gRPC port: bounded connections, a queue of calls for each method, health, and reflection on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from k8s.pod.addresses import split_address
from k8s.pod.errors import StartError
from k8s.pod.grpc import reflection
from k8s.pod.grpc.library import Health, LibraryServices

S = TypeVar("S")
Handlers = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
"""The handlers of a service, by the names of its methods."""

_FEWEST_MS_BETWEEN_PINGS = 5_000
"""Clients ping an idle connection every 10 s at the most often that gRPC for Go and for Java allows, give or take."""
_FREED_CALLS = 128
"""Calls of a connection that are over and not freed yet: a client that resets as fast as it calls is refused above it,
and one that keeps to its calls in flight never is."""
_UNSEEN_CALLS = 4096
"""Calls of one method that the event loop has not seen yet, 20 kB each: gRPC cancels what comes above it."""


def _options(most_connections: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.keepalive_time_ms", 60_000),  # a peer that vanished frees what it held
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),  # without it, two pings in two hours
        ("grpc.http2.min_ping_interval_without_data_ms", _FEWEST_MS_BETWEEN_PINGS),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server behind it
        ("grpc.http.overload_protection", 1),  # calls that were reset count until they are freed
        ("grpc.http2.max_deallocating_streams", _FREED_CALLS),
        ("grpc.server.max_pending_requests", _UNSEEN_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _UNSEEN_CALLS),
    ]


class GrpcServer:
    """The server of one port. gRPC queues the calls of each method by themselves, and all unknown ones together.

    So a flood of one method's calls delays those of that method, and no others. Health and reflection answer anybody
    within bounds of their own.
    """

    def __init__(
        self,
        setting: str,
        bind: str,
        most_connections: int,
        *,
        options: Iterable[tuple[str, int]] = (),
        credentials: grpc.ServerCredentials | None = None,
        library: LibraryServices | None = None,
    ) -> None:
        """`setting` names `bind`, host:port, in errors; `options` are gRPC's, beside those of every server.

        `library` has the bounds of health and reflection, where the usual ones are too narrow.
        """
        self.address = ""
        self._setting, self._bind, self._credentials = setting, bind, credentials
        self._server = grpc.aio.server(options=[*_options(most_connections), *options])
        self._health = Health()
        self._library = library or LibraryServices()
        self.add(health.SERVICE_NAME, self._library.guarded(self._health.handlers()))

    def add(self, service: str, handlers: Handlers) -> None:
        """Serve a service, before the start."""
        self._server.add_registered_method_handlers(service, dict(handlers))

    def add_servicer(self, add: Callable[[S, grpc.aio.Server], None], servicer: S) -> None:
        """Serve a servicer by the generated function that adds it; this registers its methods."""
        add(servicer, self._server)

    def reflect(self, *services: str) -> None:
        """Describe these services to tools, which need no credential for it."""
        reflection.enable(self._library, (*services, health.SERVICE_NAME))
        self._server.add_generic_rpc_handlers((self._library,))

    async def start(self) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        self.address = self._listen()
        await self._server.start()

    def _listen(self) -> str:
        """Returns the address, with the port that 0 picks."""
        split_address(self._bind)
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(self._bind)
            else:
                port = self._server.add_secure_port(self._bind, self._credentials)
        except RuntimeError as error:
            raise StartError(
                f"{self._setting} {self._bind} cannot be bound: is another program using the port?"
            ) from error
        return f"{self._bind.rpartition(':')[0]}:{port}"

    async def set_serving(self, names: Sequence[str], *, serving: bool) -> None:
        """Set the status that health reports for these names; "" is the whole server."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in names:
            await self._health.set(name, status)

    async def leave_service(self) -> None:
        """Report NOT_SERVING for all names from now on, and end the watches once they have said so."""
        await self._health.enter_graceful_shutdown()
        asyncio.get_running_loop().call_soon(self._library.end_calls)

    async def stop(self, grace_s: float | None) -> None:
        """Refuse new calls, and let open ones finish within the grace period; None: end them at once."""
        await self._server.stop(grace_s)
