"""gRPC as a source."""

from __future__ import annotations

from aggregator.request.request import GRPC
from aggregator.settings.aggregator import GrpcSettings
from aggregator.sources.calls.source import CallSource, Served
from aggregator.sources.grpc.calls import GrpcCalls
from aggregator.sources.grpc.generation import GenerationService
from aggregator.sources.grpc.listener import GrpcServer
from aggregator.sources.grpc.reading import Reading
from aggregator.sources.grpc.service import EmbeddingsService

_STREAM_AGE_SHARE = 0.9
"""Of the grace that gRPC gives the calls of an old connection: a stream ends by itself before it is cut off."""

_FEWEST_PLACES = 4
"""Messages that are received at a time; more, as long as they fit `max_pending_bytes` at their largest."""


class GrpcSource(CallSource):
    """The listener and the services behind it."""

    def __init__(self, settings: GrpcSettings, served: Served) -> None:
        """Raises StartError for certificates that cannot be read."""
        limits = served.load.limits
        super().__init__(GRPC, served, limits.max_inputs)
        places = max(_FEWEST_PLACES, limits.max_pending_bytes // limits.max_message_bytes)
        reading = Reading(places, served.load)
        calls = GrpcCalls(self._batcher, served.give_up, self._callers, served.load, reading=reading)
        service = EmbeddingsService(
            calls,
            served.models,
            served.tracing,
            stream_window=limits.stream_window,
            stream_age_s=_STREAM_AGE_SHARE * limits.connection_grace_s,
        )
        self.server = GrpcServer(service, GenerationService(calls, served.tracing), calls, settings, limits)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and cancel those that are open after `grace_s`."""
        await self.server.stop(grace_s)
        self._batcher.close()
