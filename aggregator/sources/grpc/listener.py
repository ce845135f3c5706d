"""gRPC as a source: its services, health and reflection, TLS, and the bounds that gRPC itself keeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from typing_extensions import override

from aggregator.errors import InvalidRequest
from aggregator.observability.calls import CallTelemetry
from aggregator.request.request import GRPC
from aggregator.settings.aggregator import GrpcSettings, TlsSettings
from aggregator.sources.calls.calls import CallSource, Served
from aggregator.sources.calls.certificates import server_context, watch_certificates
from aggregator.sources.calls.load import Limits
from aggregator.sources.grpc.generation import SERVICE as GENERATION
from aggregator.sources.grpc.generation import GenerationService
from aggregator.sources.grpc.ranking import SERVICE as RANKING
from aggregator.sources.grpc.ranking import RankingService
from aggregator.sources.grpc.reading import NO_MESSAGE, Context, GrpcCalls, Reading, answering
from aggregator.sources.grpc.service import SERVICE, EmbeddingsService
from k8s.pod.grpc_port import add_port, server_options
from protos import reflection

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[object, object]
    _WatchContext = grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]

_Decode = Callable[[bytes], object]
_Answer = Callable[[object, Context], Awaitable[object]]
_Stream = Callable[[AsyncIterator[object], Context], AsyncIterator[object]]

_LOG = logging.getLogger(__name__)
_SERVICES = SERVICE, GENERATION, RANKING
_MOST_UNSEEN = 2
"""Multiple of `max_calls`: gRPC refuses calls above it that the event loop has not seen yet, without a message."""
_IDLE_MS = 60_000
"""gRPC closes connections above the bound as they come, and cannot close an idle one instead: idle ones end soon."""
_LOOKAHEAD_BYTES = 16 * 1024
"""Bytes of each message that gRPC receives before the message is read."""
_MAX_MESSAGE_BYTES = 64 * 1024
"""The largest message to health or reflection."""
_STREAM_AGE_SHARE = 0.9
"""Share of the grace that gRPC gives the calls of an old connection: a stream ends before it is cut off."""
_PLACES = 16
"""Messages that gRPC receives at a time, which nobody can count before they are whole: 64 MiB of the largest."""


class GrpcSource(CallSource):
    """The listener. A name that health does not know is NOT_FOUND; the empty name is the whole server."""

    def __init__(self, settings: GrpcSettings, served: Served) -> None:
        """Raises StartError for certificates that cannot be used."""
        limits = served.load.limits
        super().__init__(GRPC, served, limits.max_inputs)
        reading = Reading(_PLACES, served.load)
        calls = GrpcCalls(self._batcher, served.give_up, self._callers, served.load, reading=reading)
        telemetry = CallTelemetry(served.tracing, served.load.metrics)
        self._service = EmbeddingsService(
            calls,
            served.models,
            telemetry,
            stream_window=limits.stream_window,
            stream_age_s=_STREAM_AGE_SHARE * limits.connection_grace_s,
        )
        generation = GenerationService(calls, telemetry)
        ranking = RankingService(calls, telemetry)
        self._settings = settings
        self._credentials = server_credentials(settings.tls)
        self._server = grpc.aio.server(options=_options(limits))
        self._health = _Health()
        others = GuardedServices(calls)
        others.add_generic_rpc_handlers((self._health.handler(),))
        if not settings.authentication.required:  # it answers callers without a credential
            reflection.enable(others, (*_SERVICES, health.SERVICE_NAME))
        self._server.add_generic_rpc_handlers(
            (self._service.handler(), generation.handler(), ranking.handler(), others)
        )

    @override
    async def prepare(self, timeout_s: float) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        self.address = add_port(self._server, "grpc.bind", self._settings.bind, self._credentials)
        await self.set_serving(serving=True)
        await self._server.start()
        extra = {
            "address": self.address,
            "tls": self._credentials is not None,
            "client_certificates": self._settings.tls.client_ca_file is not None,
            "authentication": self._settings.authentication.required,
        }
        _LOG.info("grpc listening", extra=extra)

    async def set_serving(self, *, serving: bool) -> None:
        """Set the status that the health service reports, for the server and for the service."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *_SERVICES):
            await self._health.set(name, status)

    @override
    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let open ones finish within the grace period, and end streams after their last answers."""
        await self.set_serving(serving=False)
        # After the server has sent clients elsewhere: they open their next streams there.
        asyncio.get_running_loop().call_soon(self._end_streams)
        await self._server.stop(grace_s)
        self._batcher.close()

    def _end_streams(self) -> None:
        self._service.end_streams()
        self._health.end_watches()


class GuardedServices(grpc.GenericRpcHandler):
    """Services of libraries (health, reflection), whose calls are held to the same bounds as our own.

    A library adds its handlers to this as to a server. Anybody may call them.
    """

    def __init__(self, calls: GrpcCalls) -> None:
        self._calls = calls
        self._services: list[grpc.GenericRpcHandler] = []
        self._known: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler], /) -> None:
        self._services.extend(generic_rpc_handlers)

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        method = handler_call_details.method
        known = self._known.get(method)
        if known is None:
            found = next((found for each in self._services if (found := each.service(handler_call_details))), None)
            if found is None:
                return None
            known = self._known[method] = self._guarded(found)
        return known

    def _guarded(self, handler: Handler) -> Handler:
        serializer = handler.response_serializer
        decode = cast("_Decode", handler.request_deserializer)
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(cast("_Stream", handler.stream_stream), decode), None, serializer
            )
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._answering(cast("_Answer", handler.unary_stream), decode), None, serializer
            )
        answer = self._answering(cast("_Answer", handler.unary_unary), decode)
        return grpc.stream_unary_rpc_method_handler(answer, None, serializer)

    def _answering(self, serve: _Answer, decode: _Decode) -> _Answer:
        async def answer(context: Context) -> object:
            return await serve(await self._first(context, decode), context)

        return answering(answer)

    def _streaming(self, serve: _Stream, decode: _Decode) -> _Answer:
        async def stream(context: Context) -> None:
            self._calls.room((context.peer(),))
            async for answer in serve(self._messages(context, decode), context):
                await context.write(cast("bytes", answer))  # serialized by the handler

        return answering(stream)

    async def _first(self, context: Context, decode: _Decode) -> object:
        self._calls.room((context.peer(),))
        async for message in self._messages(context, decode):
            return message
        raise InvalidRequest(NO_MESSAGE)

    async def _messages(self, context: Context, decode: _Decode) -> AsyncIterator[object]:
        while (data := await self._calls.reading.message(context, context.peer())) is not None:
            if len(data) > _MAX_MESSAGE_BYTES:
                raise InvalidRequest(f"a message of {len(data)} bytes: this service takes {_MAX_MESSAGE_BYTES}")
            try:
                yield decode(data)
            except DecodeError:
                raise InvalidRequest("the message cannot be decoded") from None


class _Health(health.aio.HealthServicer):
    """Health whose watches can be ended: by themselves they last, and a stop would wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Task[None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        asked, told = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self.Check, asked, told),
            "Watch": grpc.unary_stream_rpc_method_handler(
                cast("Callable[..., AsyncIterator[object]]", self.Watch), asked, told
            ),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers)

    @override
    async def Watch(self, request: health_pb2.HealthCheckRequest, context: _WatchContext) -> None:
        """Report every change, until `end_watches`."""
        watch = asyncio.create_task(super().Watch(request, context), name="watch health")
        self._watches.add(watch)
        try:
            await asyncio.wait((watch,))
        finally:
            self._watches.remove(watch)
            watch.cancel()

    def end_watches(self) -> None:
        for watch in self._watches:
            watch.cancel()


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),  # held to the ledger before
        ("grpc.max_metadata_size", limits.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", limits.max_metadata_bytes),
        ("grpc.max_concurrent_streams", limits.max_calls_per_connection),
        # It also counts calls that are answered but not yet freed, and refuses clients that keep to the limit.
        ("grpc.http.overload_protection", 0),
        # Calls that the event loop has not seen yet: above a thousand of them gRPC would cancel some at random.
        ("grpc.server.max_pending_requests", _MOST_UNSEEN * limits.max_calls),
        ("grpc.server.max_pending_requests_hard_limit", _MOST_UNSEEN * limits.max_calls),
        # By default gRPC lets clients send megabytes on every call before the handler reads any of it.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
        ("grpc.max_connection_age_ms", int(limits.connection_age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(limits.connection_grace_s * 1000)),
        ("grpc.server_handshake_timeout_ms", 20_000),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        *server_options(limits.max_connections),
    ]


def server_credentials(settings: TlsSettings) -> grpc.ServerCredentials | None:
    """Credentials that are read again when their files change; None without TLS. Raises StartError."""
    files = watch_certificates(settings, _configuration)
    if files is None:
        return None
    # gRPC asks before every handshake; the configuration it is given last stays in force.
    return grpc.dynamic_ssl_server_credentials(
        files.get(), files.get, require_client_authentication=settings.client_ca_file is not None
    )


def _configuration(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCertificateConfiguration:
    chain, secret = cert.read_bytes(), key.read_bytes()
    ca = client_ca.read_bytes() if client_ca is not None else None
    server_context(cert, key, client_ca)  # raises where gRPC would stay silent
    return grpc.ssl_server_certificate_configuration([(secret, chain)], ca)
