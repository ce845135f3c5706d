"""The small shapes that the chart's values are made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.alias_generators import to_camel

Mapping = dict[str, Any]
Labels = dict[str, str]
Mappings = list[dict[str, Any]]
SomePods = NonNegativeInt | Annotated[str, Field(pattern=r"^(100|[1-9]?\d)%$")]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]


class Values(BaseModel):
    """A group of values: names in camelCase, unknown ones refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


def settings_of(name: str, description: str, default: Mapping | None = None) -> Any:
    """A field that takes a process's settings by their own names; the schema puts them in place."""
    chosen = default or {}
    return Field(default_factory=lambda: dict(chosen), description=description, json_schema_extra={"settings": name})


Quantity = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$")]


class Image(Values):
    """One container image."""

    registry: str = Field(default="", description="host before the repository; empty: the one of image.registry")
    repository: str = Field(default="", description="its name; empty: as in modelServer.image")
    tag: str = Field(default="", description="empty: the chart's appVersion")
    digest: str = Field(default="", description="sha256:...; wins over the tag")


class SecretKey(Values):
    """One key of a Secret that is there already."""

    secret_name: str = Field(min_length=1)
    key: str = Field(min_length=1)


class KeyPair(Values):
    """A certificate and its key, in a Secret that is there already."""

    secret_name: str = Field(min_length=1)
    cert_key: str = Field(default="tls.crt")
    key_key: str = Field(default="tls.key")


class Resources(Values):
    """Requests and limits."""

    requests: dict[str, Quantity | float] = Field(default_factory=dict)
    limits: dict[str, Quantity | float] = Field(default_factory=dict)


class Placement(Values):
    """Where pods run."""

    node_selector: Labels = Field(default_factory=dict, description="labels that the node must have")
    tolerations: Mappings = Field(default_factory=list, description="taints that the pods bear")
    affinity: Mapping = Field(default_factory=dict, description="as Kubernetes has it")
    topology_spread_constraints: Mappings = Field(
        default_factory=list, description="empty: spread over nodes and zones, as far as that can be had"
    )
    priority_class_name: str = Field(default="", description="how the scheduler ranks the pods")
    runtime_class_name: str = Field(default="", description="such as nvidia")


class Pods(Placement):
    """What all kinds of pods can be told."""

    resources: Resources = Field(default_factory=Resources, description="requests and limits of the container")
    pod_annotations: Labels = Field(default_factory=dict, description="more annotations of the pods")
    pod_labels: Labels = Field(default_factory=dict, description="more labels of the pods")
    env: Mappings = Field(
        default_factory=list, description="more environment, such as OTEL_EXPORTER_OTLP_ENDPOINT; wins over config"
    )
    pre_stop_seconds: NonNegativeInt = Field(
        default=5, description="between the end of new connections and SIGTERM, so that nobody calls a pod that is gone"
    )
    pod_spec: Mapping = Field(
        default_factory=dict,
        description="over the pods' spec, as Kubernetes has it: securityContext, initContainers, schedulerName;"
        " containers and volumes come besides; null takes away",
    )
    container: Mapping = Field(
        default_factory=dict,
        description="over the container, likewise: securityContext, probes, lifecycle; envFrom, ports and volumeMounts"
        " come besides",
    )


class Hpa(Values):
    """Bounds and temper of a HorizontalPodAutoscaler."""

    enabled: bool = Field(default=True, description="false: `replicas` holds, whatever autoscaling.mode says")
    min_replicas: NonNegativeInt = Field(default=1, description="at least so many; 0 only in keda mode")
    max_replicas: PositiveInt = Field(default=8, description="at most so many")
    behavior: Mapping = Field(default_factory=dict, description="as Kubernetes has it")
    keda: Mapping = Field(
        default_factory=dict,
        description="more of the ScaledObject's spec, as KEDA has it: cooldownPeriod, pollingInterval;"
        " triggers come besides the chart's",
    )


class ModelAutoscaling(Hpa):
    """How one model's servers are scaled."""

    lag_records_per_replica: PositiveInt | None = Field(
        default=20_000, description="guard: records of lag that one more replica is asked for; null: none"
    )
    behavior: Mapping = Field(
        default_factory=lambda: {
            "scaleUp": {
                "stabilizationWindowSeconds": 0,
                "selectPolicy": "Max",
                "policies": [
                    {"type": "Pods", "value": 2, "periodSeconds": 60},
                    {"type": "Percent", "value": 50, "periodSeconds": 60},
                ],
            },
            "scaleDown": {
                "stabilizationWindowSeconds": 300,
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}],
            },
        },
        description="as Kubernetes has it; the window down should exceed twice a pod's start",
    )


class Gpu(Values):
    """The device of a model server."""

    count: NonNegativeInt = Field(default=1, description="0: it computes on the CPU")
    resource: str = Field(default="nvidia.com/gpu", description="the extended resource to ask for")


class RollingUpdate(Values):
    """How new pods take the place of old ones."""

    max_surge: SomePods = Field(
        default=1, description="more pods than asked for meanwhile; each needs a GPU that is free, or the rollout waits"
    )
    max_unavailable: SomePods = Field(
        default=0, description="fewer pods than asked for meanwhile; where no GPU is to spare: 1, and maxSurge 0"
    )


class Source(Values):
    """Where a model's weights come from."""

    hub: str = Field(default="", description="name on the Hugging Face hub; needs a way there")
    revision: str = Field(default="", description="hub revision, or what to call a local model's")
    hub_token: SecretKey | None = Field(default=None, description="for gated models")
    path: str = Field(default="", description="folder in the image or in `volume`, instead of `hub`")
    volume: Mapping | None = Field(
        default=None, description="a Kubernetes volume source with the weights, mounted read-only at /models"
    )


class Cache(Values):
    """Where downloads, measured profiles and compiled kernels are kept; an emptyDir unless persistent."""

    persistent: bool = Field(default=False, description="on a claim, so that new pods start sooner")
    existing_claim: str = Field(default="", description="a claim that is there already")
    storage_class_name: str = Field(default="", description="empty: the cluster's default")
    access_modes: list[AccessMode] = Field(default=["ReadWriteMany"], description="several nodes need ReadWriteMany")
    size: Quantity = Field(default="20Gi", description="of the claim, or the limit of the emptyDir")


Port = Annotated[int, Field(ge=1, le=65535)]
