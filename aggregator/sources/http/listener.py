"""HTTP as a source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from aggregator.observability.metrics import HttpClosed
from aggregator.request.request import HTTP
from aggregator.settings.aggregator import HttpSettings, TlsSettings
from aggregator.sources.calls.calls import CallSource, Served
from aggregator.sources.calls.certificates import server_context, watch_certificates
from aggregator.sources.http.answer import Form
from aggregator.sources.http.calls import HttpCalls
from aggregator.sources.http.service import OpenAIService, OpenRoutes
from aggregator.sources.http.static import Static
from k8s.pod.http.connections import Connections
from k8s.pod.http.server import HttpServer

_LOG = logging.getLogger(__name__)


class HttpSource(CallSource):
    """The listener. TLS and authentication are gRPC's. When it stops, each answer is the last of its connection."""

    def __init__(
        self,
        settings: HttpSettings,
        tls: TlsSettings,
        served: Served,
        routes: Mapping[str, Form],
        *,
        doors: Sequence[OpenRoutes] = (),
        static_paths: Sequence[Mapping[str, Callable[[], Static]]] = (),
    ) -> None:
        """Raises StartError for certificates that cannot be read; the rest is as in `OpenAIService`."""
        super().__init__(HTTP, served, served.load.limits.max_inputs)
        calls = HttpCalls(self._batcher, served.give_up, self._callers, served.load, timeout_s=settings.timeout_s)
        self.service = OpenAIService(
            calls,
            served.models,
            served.tracing,
            routes,
            doors=doors,
            static_paths=static_paths,
            trusts_token_ids=settings.trusts_token_ids,
        )
        closed, most = served.load.metrics.http_closed, served.load.limits.max_connections
        self._connections = Connections(most, lambda why: closed.add(1, HttpClosed(why)))
        self._bind = settings.bind
        self._certificates = watch_certificates(tls, server_context)
        certificates = self._certificates
        self._server = HttpServer(
            self.service, self._connections, certificates.get if certificates is not None else None
        )

    @override
    async def prepare(self, timeout_s: float) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        self.address = await self._server.start("http.bind", self._bind)
        _LOG.info("http listening", extra={"address": self.address, "tls": self._certificates is not None})

    @override
    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, answer open requests, and cancel those still open after `grace_s`."""
        await self._server.stop(grace_s)
        self._batcher.close()
