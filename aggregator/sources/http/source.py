"""HTTP as a source."""

from __future__ import annotations

from aggregator.request.request import HTTP
from aggregator.settings.aggregator import HttpSettings, TlsSettings
from aggregator.sources.calls.source import CallSource, Served
from aggregator.sources.http.calls import HttpCalls
from aggregator.sources.http.listener import HttpServer
from aggregator.sources.http.service import OpenAIService

_MAX_INPUTS = 2048
"""Of one request, as at OpenAI."""


class HttpSource(CallSource):
    """The listener and the service behind it. TLS and authentication are gRPC's."""

    def __init__(self, settings: HttpSettings, tls: TlsSettings, served: Served) -> None:
        """Raises StartError for certificates that cannot be read."""
        super().__init__(HTTP, served, _MAX_INPUTS)
        calls = HttpCalls(self._batcher, served.give_up, self._callers, served.load, timeout_s=settings.timeout_s)
        service = OpenAIService(calls, served.models, served.tracing, trusts_token_ids=settings.trusts_token_ids)
        self.server = HttpServer(settings.bind, tls, service)

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, and cancel the calls that are open after `grace_s`."""
        await self.server.stop(grace_s)
        self._batcher.close()
