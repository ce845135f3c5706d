"""The settings of the scaler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat

from aggregator.settings.addresses import check_address
from aggregator.settings.aggregator import KafkaSettings
from aggregator.settings.other_names import KAFKA_NAMES
from k8s.kube.endpoints import SCHEME
from k8s.pod.addresses import Bind, OptionalBind
from k8s.pod.settings import Group
from k8s.pod.telemetry import TelemetrySettings

ENV_PREFIX = "TOKENBATCH_SCALER_"


class ModelSettings(Group):
    """One model whose servers are scaled."""

    name: str = Field(description="its name in external metrics: the label `model`")
    demand_of: str = Field(
        default="", description="the aggregators' name of the model whose demand it serves; empty: the same as name"
    )
    deployment: str = Field(default="", description="its Deployment; empty: the number of replicas is not known")
    share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=1.0, description="its share of that demand; a canary serves the rest"
    )

    @property
    def model(self) -> str:
        return self.demand_of or self.name


def _followed(addresses: tuple[str, ...]) -> tuple[str, ...]:
    services = [address for address in addresses if address.startswith(SCHEME)]
    for address in addresses:
        if address.startswith("dns://"):
            raise ValueError(f"{address}: give host:port or k8s://SERVICE.NAMESPACE:PORT")
        check_address(address)
    if len(services) > 1:
        raise ValueError(f"{' and '.join(services)}: give one Service, and others as host:port")
    return addresses


Followed = Annotated[tuple[str, ...], AfterValidator(_followed)]


class AggregatorsSettings(Group):
    """The aggregators, which report their demand."""

    addresses: Followed = Field(
        default=("localhost:50052",),
        description="host:port of each, or k8s://SERVICE.NAMESPACE:PORT for all endpoints of one Service",
        min_length=1,
    )
    interval_s: PositiveFloat = Field(default=5.0, description="time between two requests to each aggregator")


class PolicySettings(Group):
    """How demand becomes replicas; see aggregator.wings.scaler.measuring.demand."""

    drain_s: PositiveFloat = Field(default=30.0, description="time in which a backlog is to be processed")
    utilisation: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.75, description="the share of a model server's throughput to plan for"
    )
    arrival_window_s: PositiveFloat = Field(
        default=20.0,
        description="time over which arriving records are counted; at most two periods of the autoscaler",
    )
    peak_hold_s: NonNegativeFloat = Field(default=60.0, description="how long a peak of the figure stays published")
    max_age_s: PositiveFloat = Field(
        default=20.0, description="if an input is older, the scaler answers with an error, not with a figure"
    )


class ApiSettings(Group):
    """The external metrics API, for HorizontalPodAutoscalers."""

    bind: OptionalBind = Field(
        default="0.0.0.0:8443", description="host:port; port 0 picks a free one; empty: external metrics are not served"
    )
    service: str = Field(
        default="tokenbatch-scaler",
        description="the scaler's Service, which its certificate names; the Secret SERVICE-tls has the certificate",
    )


class KedaSettings(Group):
    """The gRPC port: KEDA's external scaler, and the health service."""

    bind: Bind = Field(
        default="0.0.0.0:50071",
        description="host:port where KEDA and other scalers ask for figures; port 0 picks a free one",
    )


class ScalerSettings(Group):
    """All settings of the scaler."""

    other_names: ClassVar[Mapping[str, str]] = {
        **KAFKA_NAMES,
        "port": "give host:port as keda.bind, api.bind or telemetry.metrics_bind",
        "min_replicas": "the autoscaler has it, not the scaler",
        "max_replicas": "the autoscaler has it, not the scaler",
    }
    most_connections: ClassVar[int] = 64
    """The most connections to each port: of API servers, KEDA, other scalers and probes."""

    models: tuple[ModelSettings, ...] = Field(
        default=(ModelSettings(name="all-minilm-l6-v2"),),
        min_length=1,
        description="the models whose servers are scaled",
    )
    kafka: KafkaSettings = KafkaSettings()
    aggregators: AggregatorsSettings = AggregatorsSettings()
    peers: Followed = Field(
        default=(),
        description="the replicas of this scaler, as in aggregators.addresses; each publishes the highest figure of"
        " all",
    )
    policy: PolicySettings = PolicySettings()
    api: ApiSettings = ApiSettings()
    keda: KedaSettings = KedaSettings()
    telemetry: TelemetrySettings = TelemetrySettings(metrics_bind="0.0.0.0:9466")

    @property
    def ports(self) -> int:
        """How many ports share the open files, without that of metrics."""
        return 1 + bool(self.api.bind)
