"""Make the gRPC front door, and the gate that all requests pass, from settings."""

from __future__ import annotations

from aggregator.admission.models import Models
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.request import Defaults
from aggregator.scheduler.work_item import Priority, Source
from aggregator.settings import AggregatorSettings
from aggregator.sources.grpc.callers import Callers, open_authentication
from aggregator.sources.grpc.calls import Calls, Embedder
from aggregator.sources.grpc.listener import GrpcServer
from aggregator.sources.grpc.load import Load, LoadLimits
from aggregator.sources.grpc.reading import Reading
from aggregator.sources.grpc.service import EmbeddingsService

_STREAM_AGE_SHARE = 0.9
"""Of the grace that a connection's calls have: a stream opened just before it began ends by itself, not cut off."""

_FEWEST_PLACES = 4
"""For messages on their way in, each of which may be as large as any: together no more than what may be pending."""


def make_front_door(
    settings: AggregatorSettings, embedder: Embedder, models: Models, metrics: Metrics, tracing: Tracing
) -> GrpcServer | None:
    """The listener with all behind it; None where gRPC is not served. Raises StartError."""
    grpc = settings.grpc
    if not grpc.enabled:
        return None
    defaults = Defaults(
        source=Source.GRPC,
        model=grpc.model or settings.models[0].name,
        priority=Priority[grpc.priority.upper()],
        max_inputs=grpc.max_inputs,
        trusts_tenant=not grpc.authentication.required,
    )
    callers = Callers(defaults, open_authentication(grpc.authentication), traced=tracing.enabled)
    load = Load(LoadLimits(grpc.max_calls, grpc.max_pending_bytes, grpc.max_streams), metrics)
    reading = Reading(max(_FEWEST_PLACES, grpc.max_pending_bytes // grpc.max_message_bytes), load)
    calls = Calls(embedder, callers, load, reading)
    service = EmbeddingsService(
        calls,
        models,
        tracing,
        stream_window=grpc.stream_window,
        stream_age_s=_STREAM_AGE_SHARE * grpc.max_connection_grace_s,
    )
    return GrpcServer(service, calls, grpc)
