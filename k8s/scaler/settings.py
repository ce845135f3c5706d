"""All configuration of the scaler: environment over file over default, unknown names refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat

from aggregator.observability.telemetry import TelemetrySettings
from aggregator.settings.aggregator import KafkaSettings, check_address
from aggregator.settings.load import Group
from k8s.endpoints import SCHEME

ENV_PREFIX = "TOKENBATCH_SCALER_"


class ModelSettings(Group):
    """One model whose servers are scaled."""

    name: str = Field(description="what the metrics' label `model` says")
    demand_of: str = Field(
        default="", description="the model, as the aggregators name it, whose demand it serves; empty: the name"
    )
    deployment: str = Field(default="", description="the Deployment that serves it; empty: replicas are not known")
    share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=1.0, description="its part of that demand, where a canary has the rest"
    )

    @property
    def model(self) -> str:
        """The model whose demand it serves."""
        return self.demand_of or self.name


def _followed(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses of which one at the most is a Service."""
    services = [address for address in addresses if address.startswith(SCHEME)]
    for address in services:
        check_address(address)
    if len(services) > 1:
        raise ValueError(f"{' and '.join(services)}: give one Service, and others as host:port")
    return addresses


Followed = Annotated[tuple[str, ...], AfterValidator(_followed)]


class AggregatorsSettings(Group):
    """Where demand is asked for."""

    addresses: Followed = Field(
        default=("localhost:50052",),
        description="host:port of each, or k8s://SERVICE.NAMESPACE:PORT for all endpoints of one Service",
        min_length=1,
    )
    interval_s: PositiveFloat = Field(default=5.0, description="between two questions")


class PolicySettings(Group):
    """How demand becomes replicas; see k8s.scaler.measuring.demand."""

    drain_s: PositiveFloat = Field(default=30.0, description="time in which a backlog is to be worked off")
    utilisation: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.75, description="share of a model server's throughput to plan with"
    )
    arrival_window_s: PositiveFloat = Field(
        default=20.0,
        description="arriving records are counted over this time; no longer than two of the autoscaler's periods",
    )
    peak_hold_s: NonNegativeFloat = Field(default=60.0, description="the highest figure of this time is published")
    max_age_s: PositiveFloat = Field(default=20.0, description="an older input is an error, never a zero")


class ApiSettings(Group):
    """The external metrics API, for a HorizontalPodAutoscaler."""

    bind: str = Field(
        default="0.0.0.0:8443", description="host:port; port 0 picks a free one; empty: external metrics are not served"
    )
    service: str = Field(
        default="tokenbatch-scaler",
        description="the Service before it, which its certificate names; the Secret SERVICE-tls holds that",
    )


class KedaSettings(Group):
    """The gRPC port: KEDA's external scaler, and the health service."""

    bind: str = Field(default="0.0.0.0:50071", description="host:port; port 0 picks a free one")


class ScalerSettings(Group):
    """Everything the scaler can be told."""

    models: tuple[ModelSettings, ...] = Field(default=(ModelSettings(name="all-minilm-l6-v2"),), min_length=1)
    kafka: KafkaSettings = KafkaSettings()
    aggregators: AggregatorsSettings = AggregatorsSettings()
    peers: Followed = Field(
        default=(), description="the replicas of this scaler, as aggregators.addresses: all publish the highest figure"
    )
    policy: PolicySettings = PolicySettings()
    api: ApiSettings = ApiSettings()
    keda: KedaSettings = KedaSettings()
    telemetry: TelemetrySettings = TelemetrySettings(metrics_bind="0.0.0.0:9466")
