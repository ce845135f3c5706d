"""gRPC as a source: calls become requests, completed requests become answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from aggregator.admission.models import Models
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.request import Defaults, Request
from aggregator.scheduler.work_item import Priority
from aggregator.settings.aggregator import AggregatorSettings
from aggregator.sources.grpc.call_batcher import CallBatcher
from aggregator.sources.grpc.callers import Callers, open_authentication
from aggregator.sources.grpc.calls import Calls, GiveUp, call_of
from aggregator.sources.grpc.generation import GenerationService
from aggregator.sources.grpc.listener import GrpcServer
from aggregator.sources.grpc.load import Limits, Load
from aggregator.sources.grpc.reading import Reading
from aggregator.sources.grpc.service import EmbeddingsService
from aggregator.sources.source import GRPC, Receive

_STREAM_AGE_SHARE = 0.9
"""Of the grace that gRPC gives the calls of an old connection: a stream ends by itself before it is cut off."""

_LIMITS = Limits()
_FEWEST_PLACES = 4
"""Messages that are received at a time; more, as long as they fit `max_pending_bytes` at their largest."""


class GrpcSource:
    """gRPC as a Source. Its callers wait, so they are refused where a limit is reached."""

    name = GRPC
    refusable = True
    replayed = False

    def __init__(
        self,
        settings: AggregatorSettings,
        give_up: GiveUp,
        models: Models,
        metrics: Metrics,
        tracing: Tracing,
        *,
        limits: Limits = _LIMITS,
    ) -> None:
        """Raises StartError for credentials that cannot be read."""
        grpc = settings.grpc
        defaults = Defaults(
            source=self,
            model=settings.models[0].name,
            priority=Priority.INTERACTIVE,
            max_inputs=limits.max_inputs,
            trusts_tenant=not grpc.authentication.required,
        )
        callers = Callers(defaults, open_authentication(grpc.authentication), traced=tracing.enabled)
        load = Load(limits, metrics)
        reading = Reading(max(_FEWEST_PLACES, limits.max_pending_bytes // limits.max_message_bytes), load)
        self._batcher = CallBatcher(models.next_due_s)
        calls = Calls(self._batcher, give_up, callers, load, reading)
        service = EmbeddingsService(
            calls,
            models,
            tracing,
            stream_window=limits.stream_window,
            stream_age_s=_STREAM_AGE_SHARE * limits.connection_grace_s,
        )
        self.server = GrpcServer(service, GenerationService(calls, tracing), calls, grpc, limits)

    @property
    def receivers(self) -> Sequence[Receive]:
        """Calls, several at a time while all model servers are busy."""
        return (self._batcher.receive,)

    def receive_now(self) -> None:
        """A model server became free: calls wait no longer."""
        self._batcher.receive_now()

    def accept(self, request: Request) -> None:
        """The size of a reply is checked with the other admission limits."""

    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        """Wake the callers."""
        for request in requests:
            call_of(request).complete()
        yield requests

    async def delivered(self) -> None:
        """Nothing is written after `reply`."""

    def newly_stuck(self) -> None:
        """No call holds back another."""

    def pause(self, away: Callable[[str], bool], full: Callable[[str, Priority], bool]) -> None:
        """Callers are refused instead."""

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and cancel those that are open after `grace_s`."""
        await self.server.stop(grace_s)
        self._batcher.close()
