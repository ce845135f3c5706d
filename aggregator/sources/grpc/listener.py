"""gRPC as a source: its services, TLS, and the bounds that gRPC itself keeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import grpc
from typing_extensions import override

from aggregator.observability.calls import CallTelemetry
from aggregator.request.request import GRPC
from aggregator.settings.aggregator import GrpcSettings, TlsSettings
from aggregator.sources.calls.calls import CallSource, Served
from aggregator.sources.calls.certificates import server_context, watch_certificates
from aggregator.sources.calls.load import Limits
from aggregator.sources.grpc.reading import GrpcCalls, Reading, RpcService
from aggregator.sources.grpc.service import EmbeddingsService
from k8s.pod.grpc.server import GrpcServer, Handlers

_LOG = logging.getLogger(__name__)
_IDLE_MS = 60_000
"""gRPC closes connections above the bound as they come, and cannot close an idle one instead: idle ones end soon."""
_LOOKAHEAD_BYTES = 16 * 1024
"""Bytes of each message that gRPC receives before the message is read."""
_UNTAKEN_S = 3600
"""A call waits to be taken up as long as its caller lets it."""
_PLACES = 16
"""Messages that gRPC receives at a time, which nobody can count before they are whole: 64 MiB of the largest."""


class GrpcSource(CallSource):
    """The listener. A name that health does not know is NOT_FOUND; the empty name is the whole server."""

    def __init__(self, settings: GrpcSettings, served: Served, services: Sequence[type[RpcService]]) -> None:
        """`services`: beside that of embeddings. Raises StartError for certificates that cannot be used."""
        limits = served.load.limits
        super().__init__(GRPC, served, limits.max_inputs)
        reading = Reading(_PLACES, served.load)
        models = served.models
        calls = GrpcCalls(
            *(self._batcher, served.give_up, self._callers, served.load), reading=reading, dimensions=models.dimensions
        )
        telemetry = CallTelemetry(served.tracing, served.load.metrics)
        embeddings = EmbeddingsService(calls, telemetry, models)
        self._services: Sequence[RpcService] = embeddings, *(new(calls, telemetry) for new in services)
        handlers: dict[str, Handlers] = {}
        for service in self._services:  # several may have methods of one
            handlers[service.name] = {**handlers.get(service.name, {}), **service.handlers()}
        self._names = list(handlers)
        self._settings = settings
        self._credentials = server_credentials(settings.tls)
        self._server = GrpcServer(
            "grpc.bind", settings.bind, limits.max_connections, options=_options(limits), credentials=self._credentials
        )
        for name, methods in handlers.items():
            self._server.add(name, methods)
        if not settings.authenticated:  # it answers callers without a credential
            self._server.reflect(*self._names)

    @override
    async def prepare(self, timeout_s: float) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        await self.set_serving(serving=True)
        await self._server.start()
        self.address = self._server.address
        extra = {
            "address": self.address,
            "tls": self._credentials is not None,
            "client_certificates": self._settings.tls.client_ca_file is not None,
            "authentication": self._settings.authenticated,
        }
        _LOG.info("grpc listening", extra=extra)

    async def set_serving(self, *, serving: bool) -> None:
        """Set the status that the health service reports, for the server and for the service."""
        await self._server.set_serving(("", *self._names), serving=serving)

    @override
    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let open ones finish within the grace period, and end streams after their last answers."""
        await self._server.leave_service()
        # After the server has sent clients elsewhere: they open their next streams there.
        for service in self._services:
            asyncio.get_running_loop().call_soon(service.end_streams)
        await self._server.stop(grace_s)
        self._batcher.close()


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),  # held to the ledger before
        ("grpc.max_metadata_size", limits.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", limits.max_metadata_bytes),
        ("grpc.max_concurrent_streams", limits.max_calls_per_connection),
        # By default gRPC lets clients send megabytes on every call before the handler reads any of it.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
        ("grpc.max_connection_age_ms", int(limits.connection_age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(limits.connection_grace_s * 1000)),
        ("grpc.server_handshake_timeout_ms", 20_000),
        # By default a call that waits for 30 s to be taken up, as many at once do on a busy machine, ends as CANCELLED.
        ("grpc.server_max_unrequested_time_in_server", _UNTAKEN_S),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
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
