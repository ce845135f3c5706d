"""The chart's values: names, defaults, meaning. values.yaml, its schema and the README follow from it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from helm.generate.parts import (
    Cache,
    Gpu,
    Hpa,
    Image,
    KeyPair,
    Labels,
    Mapping,
    Mappings,
    ModelAutoscaling,
    Pods,
    Port,
    Quantity,
    Resources,
    RollingUpdate,
    SecretKey,
    Source,
    Values,
    settings_of,
)


class ImageDefaults(Values):
    """For all images."""

    registry: str = Field(
        default="", description="host before every repository; empty: the container runtime's default"
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(default="IfNotPresent")
    pull_secrets: Mappings = Field(default_factory=list, description="such as [{name: my-registry}]")


class Kafka(Values):
    """The Kafka cluster, which is there already."""

    bootstrap_servers: str = Field(
        default="", description="host:port, several separated by commas. **The only value that must be set.**"
    )
    config: Mapping = settings_of(
        "kafka", "settings of the group kafka, by the names of docs/configuration.md", {"create_topics": True}
    )
    sasl_password: SecretKey | None = Field(default=None, description="{secretName, key} of the SASL password")
    sasl_token: SecretKey | None = Field(
        default=None, description="{secretName, key} of the bearer token of OAUTHBEARER"
    )
    ca: SecretKey | None = Field(
        default=None, description="{secretName, key} of the certificates that sign the brokers'"
    )
    client_certificate: KeyPair | None = Field(default=None, description="{secretName, certKey, keyKey} for mutual TLS")


class Strimzi(Values):
    """Topics and a user made by the Strimzi operator."""

    enabled: bool = Field(
        default=False, description="make KafkaTopic resources, and a KafkaUser; sets kafka create_topics off"
    )
    api_version: Literal["v1", "v1beta2"] = Field(
        default="v1", description="of the operator's resources; v1beta2 for operators before 0.49"
    )
    cluster: str = Field(default="", description="name of the Kafka resource")
    namespace: str = Field(default="", description="where the operator looks for topics; empty: the release's")
    user: bool = Field(default=False, description="make a KafkaUser with the rights that are needed, SCRAM-SHA-512")
    replicas: NonNegativeInt = Field(default=0, description="of the topics; 0: the cluster's default")
    topic_config: Mapping = Field(default_factory=dict, description="config of the topics, such as retention.ms")


class Canary(Values):
    """A revision on trial: what the model and modelServer say may be said again here, for its servers only."""

    share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="of the requests that pin no revision, chosen by their ids; 0 takes it back, 1 promotes it",
    )
    source: Source = Field(default_factory=Source, description="its source.revision must be given")


class Model(Values):
    """One model: anything of modelServer may be said again here, for this model only."""

    name: str = Field(
        pattern="[A-Za-z0-9]", description="the name that requests use; its letters and digits name objects, too"
    )
    aliases: list[str] = Field(default_factory=list)
    source: Source = Field(default_factory=Source)
    canary: Canary | None = Field(
        default=None, description="{share, source: {revision}} of a revision on trial, with servers of its own"
    )


class ModelServer(Pods):
    """Defaults of every model's servers."""

    image: Image = Field(default_factory=lambda: Image(repository="tokenbatch/modelserver"))
    gpu: Gpu = Field(default_factory=Gpu)
    resources: Resources = Field(
        default_factory=lambda: Resources(requests={"cpu": "2", "memory": "8Gi"}, limits={"memory": "16Gi"})
    )
    replicas: NonNegativeInt | None = Field(
        default=None, description="when it is not scaled; null: as many as there are, one at first"
    )
    autoscaling: ModelAutoscaling = Field(default_factory=ModelAutoscaling)
    rolling_update: RollingUpdate = Field(default_factory=RollingUpdate)
    cache: Cache = Field(default_factory=Cache)
    shared_memory: Quantity = Field(default="1Gi", description="size of /dev/shm, in memory")
    startup_seconds: PositiveInt = Field(
        default=1800, description="for download, load and warm-up, before a pod is given up"
    )
    config: Mapping = settings_of("modelserver", "settings of the model server, by the names of docs/configuration.md")


class FrontDoor(Values):
    """Certificates and credentials of the gRPC port, in Secrets that are there already."""

    tls: KeyPair | None = Field(default=None, description="{secretName, certKey, keyKey}: serve TLS")
    client_ca: SecretKey | None = Field(
        default=None, description="{secretName, key}: every client must have a certificate of it"
    )
    tokens: SecretKey | None = Field(default=None, description="{secretName, key} of grpc.authentication.tokens_file")
    jwks: SecretKey | None = Field(default=None, description="{secretName, key} of grpc.authentication.jwt.jwks_file")


class Route(Values):
    """A way in from outside; none without a spec."""

    annotations: Labels = Field(default_factory=dict)
    spec: Mapping = Field(
        default_factory=dict, description="as Kubernetes has it; where a rule names no backend it is the aggregators"
    )


class Aggregator(Pods):
    """The aggregators."""

    image: Image = Field(default_factory=lambda: Image(repository="tokenbatch/aggregator"))
    replicas: PositiveInt | None = Field(
        default=None, description="when it is not scaled; null: as many as there are, two at first"
    )
    resources: Resources = Field(
        default_factory=lambda: Resources(requests={"cpu": "1", "memory": "512Mi"}, limits={"memory": "1Gi"})
    )
    autoscaling: Hpa = Field(default_factory=lambda: Hpa(min_replicas=2, max_replicas=8, behavior=_RARELY))
    busy_target: float = Field(
        default=0.6, gt=0, le=1, description="share of an event loop's time that one pod is to be busy"
    )
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(default="ClusterIP")
    service_annotations: Labels = Field(default_factory=dict)
    service: Mapping = Field(
        default_factory=dict,
        description="over the spec of the callers' Service, as Kubernetes has it: loadBalancerClass,"
        " loadBalancerSourceRanges, externalTrafficPolicy",
    )
    grpc_route: Route = Field(
        default_factory=Route, description="a GRPCRoute of the Gateway API; its spec has parentRefs"
    )
    http_route: Route = Field(default_factory=Route, description="the same as an HTTPRoute, for gateways without those")
    ingress: Route = Field(default_factory=Route, description="an Ingress; its spec has ingressClassName and rules")
    front_door: FrontDoor = Field(default_factory=FrontDoor)
    startup_seconds: PositiveInt = Field(default=120, description="before a pod is given up")
    pre_stop_seconds: NonNegativeInt = Field(
        default=35,
        description="between the end of new connections and SIGTERM; clients that balance load themselves ask for"
        " names every 30 s at most",
    )
    config: Mapping = settings_of("aggregator", "settings of the aggregator, by the names of docs/configuration.md")


class Certificates(Values):
    """The scaler's serving certificate."""

    cert_manager: bool = Field(default=False, description="have it made by cert-manager; else the scaler makes its own")
    issuer_ref: Mapping = Field(default_factory=dict, description="cert-manager issuer; empty: a self-signed one")


class Scaler(Pods):
    """The scaler: it is installed unless autoscaling.mode is none."""

    image: Image = Field(default_factory=Image, description="each empty: as in aggregator.image")
    replicas: PositiveInt = Field(default=2)
    resources: Resources = Field(
        default_factory=lambda: Resources(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "256Mi"})
    )
    certificates: Certificates = Field(default_factory=Certificates)
    config: Mapping = settings_of("scaler", "settings of the scaler, by the names of docs/configuration.md")


class Autoscaling(Values):
    """Who scales."""

    mode: Literal["hpa", "keda", "adapter", "none"] = Field(
        default="hpa",
        description="hpa: HorizontalPodAutoscalers over an external metrics API, which the scalers of all releases"
        " serve; keda: ScaledObjects; adapter: HorizontalPodAutoscalers over somebody else's API, which reads"
        " Prometheus; none: nobody does",
    )
    keda_namespace: str = Field(
        default="keda", description="where KEDA's operator runs, to be let through to the scaler"
    )


class NetworkPolicy(Values):
    """Nothing is let through but what is named."""

    enabled: bool = Field(default=True)
    clients: Mappings = Field(
        default_factory=list,
        description="who may call gRPC; empty: the namespace's pods, and anyone where callers come from outside by"
        " aggregator.serviceType or a route",
    )
    monitoring: Mappings = Field(
        default_factory=lambda: [{"namespaceSelector": {}}], description="who may scrape metrics"
    )
    kafka: Mappings = Field(default_factory=list, description="where the brokers are; empty: anywhere")
    kubernetes: Mappings = Field(default_factory=list, description="where the API server is; empty: anywhere")
    dns: Mappings = Field(default_factory=list, description="where names are asked for; empty: anywhere")
    hub: Mappings = Field(default_factory=list, description="where the Hugging Face hub is; empty: anywhere")
    models: Mappings = Field(
        default_factory=list, description="egress rules of model servers to wherever else weights come from"
    )
    kafka_ports: list[Port] = Field(
        default_factory=list, description="of the brokers as advertised; empty: those of kafka.bootstrapServers"
    )
    kubernetes_ports: list[Port] = Field(default_factory=lambda: [443, 6443], description="of the API server")
    dns_ports: list[Port] = Field(
        default_factory=lambda: [53, 5353], description="of DNS, wherever it is: 5353 is that of OpenShift's pods"
    )
    telemetry: Mappings = Field(default_factory=list, description="egress rules to an OTLP collector")


class Monitoring(Values):
    """Objects of the Prometheus operator and Grafana's sidecar."""

    pod_monitor: bool = Field(default=False)
    service_monitor: bool = Field(default=False, description="instead of the PodMonitor")
    interval: str = Field(default="15s", pattern=r"^\d+(ms|s|m)$")
    rules: bool = Field(default=False, description="a PrometheusRule with the alerts")
    dashboard: bool = Field(default=False, description="a ConfigMap with the Grafana dashboard")
    dashboard_labels: Labels = Field(default_factory=lambda: {"grafana_dashboard": "1"})
    labels: Labels = Field(default_factory=dict, description="by which the operator finds monitors and rules")
    runbooks: str = Field(default="docs/runbook.md", description="address of the runbook that alerts point to")


class ServiceAccounts(Values):
    """Service accounts and their rights."""

    create: bool = Field(
        default=True, description="accounts, Roles and bindings; false: they are there already, by these names"
    )
    annotations: Labels = Field(default_factory=dict)
    aggregator: Labels = Field(default_factory=dict, description="more annotations of this one, for a cloud's identity")
    model_server: Labels = Field(default_factory=dict, description="likewise")
    scaler: Labels = Field(default_factory=dict, description="likewise")


class ChartValues(Values):
    """Everything the chart can be told."""

    name_override: str = Field(default="", description="instead of the chart's name in names")
    fullname_override: str = Field(default="", description="instead of release and chart in names")
    common_labels: Labels = Field(default_factory=dict, description="of every object")
    image: ImageDefaults = Field(default_factory=ImageDefaults)
    kafka: Kafka = Field(default_factory=Kafka)
    strimzi: Strimzi = Field(default_factory=Strimzi)
    models: list[Model] = Field(
        default_factory=lambda: [
            Model(
                name="all-minilm-l6-v2",
                aliases=["minilm"],
                source=Source(hub="sentence-transformers/all-MiniLM-L6-v2"),
            )
        ],
        min_length=1,
        description="the models served; each may override anything of modelServer",
    )
    model_server: ModelServer = Field(default_factory=ModelServer)
    aggregator: Aggregator = Field(default_factory=Aggregator)
    scaler: Scaler = Field(default_factory=Scaler)
    autoscaling: Autoscaling = Field(default_factory=Autoscaling)
    service_accounts: ServiceAccounts = Field(default_factory=ServiceAccounts)
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy)
    monitoring: Monitoring = Field(default_factory=Monitoring)


_RARELY: Mapping = {  # each change of the group is a rebalance
    "scaleUp": {"stabilizationWindowSeconds": 60, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 120}]},
    "scaleDown": {"stabilizationWindowSeconds": 600, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}]},
}
