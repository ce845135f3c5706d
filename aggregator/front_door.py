"""Make the gRPC front door, and the gate that all requests pass, from settings."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from aggregator.adapters.authentication import open_authentication
from aggregator.adapters.grpc_callers import Callers
from aggregator.adapters.grpc_calls import Calls, Embedder
from aggregator.adapters.grpc_listener import GrpcServer
from aggregator.adapters.grpc_load import Load, LoadLimits
from aggregator.adapters.grpc_reading import Reading
from aggregator.adapters.grpc_server import EmbeddingsService
from aggregator.adapters.telemetry import Metrics
from aggregator.adapters.tracing import Tracing
from aggregator.core.query import Priority, Source
from aggregator.core.quotas import QuotaPolicy, Quotas
from aggregator.gate import Gate
from aggregator.models import Models
from aggregator.request import Defaults
from aggregator.settings import AggregatorSettings

_STREAM_AGE_SHARE = 0.9
"""Of the grace that a connection's calls have: a stream opened just before it began ends by itself, not cut off."""

_FEWEST_PLACES = 4
"""For messages on their way in, each of which may be as large as any: together no more than what may be pending."""


def make_gate(settings: AggregatorSettings, ready_aggregators: Callable[[], int] = lambda: 1) -> Gate:
    """The gate; a tenant's rate is divided among `ready_aggregators`."""
    tenants = settings.tenants
    rate = inf if tenants.tokens_per_s is None else tenants.tokens_per_s
    quotas = Quotas(QuotaPolicy(rate, tenants.rates, tenants.burst_s), ready_aggregators)
    return Gate(quotas, max_reply_bytes=settings.grpc.max_reply_bytes)


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
