"""All configuration of the aggregator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, SecretStr, field_validator, model_validator
from typing_extensions import override

from aggregator.settings.addresses import changes, check_address
from aggregator.settings.brokers import OTHER_REPLIES, BrokerSettings, IntakeSettings
from aggregator.settings.other_names import AGGREGATOR_NAMES
from k8s.pod.addresses import OptionalBind, Servers
from k8s.pod.settings import Group
from k8s.pod.telemetry import TelemetrySettings


class TlsSettings(Group):
    """Certificates of the gRPC port; files that change are read again, without a restart."""

    cert_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None


class GrpcSettings(Group):
    """The gRPC port."""

    bind: OptionalBind = Field(
        default="0.0.0.0:50051", description="host:port; port 0 picks a free one; empty: gRPC is not served"
    )
    tls: TlsSettings = Field(
        default=TlsSettings(),
        description="PEM files, read again when they change. cert_file: certificate chain (empty: no TLS); key_file:"
        " its private key, not encrypted; client_ca_file: CA of client certificates (if set, every client needs one)",
    )

    @property
    def authenticated(self) -> bool:
        """Whether callers must authenticate; then no field of a message names a tenant, on Kafka neither."""
        return False


class HttpSettings(Group):
    """The HTTP port, which speaks OpenAI's API. TLS and authentication are those of the gRPC port."""

    bind: OptionalBind = Field(
        default="",
        description="host:port of OpenAI's API over HTTP; port 0 picks a free one; empty: HTTP is not served. TLS and"
        " authentication are those of grpc.tls and grpc.authentication",
    )
    timeout_s: ClassVar[float] = 600.0
    """OpenAI's clients wait as long by default; x-request-timeout and x-stainless-timeout may ask for less."""
    trusts_token_ids: bool = Field(
        default=False,
        description="take token ids for the model's own; else a request with ids must name their tokenizer, as"
        " OpenAI's clients may send ids of another one",
    )


class TenantSettings(Group):
    """The limits of tenants, over all sources."""

    tokens_per_s: PositiveFloat | None = Field(
        default=None, description="token rate of each tenant, over all aggregators; empty: no limit"
    )
    rates: dict[str, PositiveFloat] = Field(default={}, description="token rates of single tenants, by name")
    aggregators: str = Field(
        default="1",
        coerce_numbers_to_str=True,
        description="the number of ready aggregators, by which token rates are divided: a number, or"
        " k8s://SERVICE.NAMESPACE:PORT or dns://NAME:PORT, whose endpoints are counted",
    )

    @field_validator("aggregators")
    @classmethod
    def _can_be_counted(cls, aggregators: str) -> str:
        if changes(aggregators):
            check_address(aggregators)
        elif not (aggregators.isdecimal() and int(aggregators)):
            raise ValueError("give a number of 1 or more, k8s://SERVICE.NAMESPACE:PORT or dns://NAME:PORT")
        return aggregators

    @property
    def limited(self) -> bool:
        return self.tokens_per_s is not None or bool(self.rates)


ENV_PREFIX = "TOKENBATCH_AGGREGATOR_"

G = TypeVar("G", bound=Group)


class TopicSettings(IntakeSettings):
    """One query topic, and the defaults for its requests."""

    name: str = Field(description="the topic to read")
    reply_topic: str = Field(
        default="",
        description="topic of the replies to requests that name none; empty: kafka.reply_topic, or generate.replies.v1,"
        " rank.replies.v1 or token_vectors.replies.v1 for the task of that name",
    )
    delta_topic: str = Field(
        default="",
        description="task generate: topic of the deltas, in addition to the replies; empty: none",
    )


class SaslSettings(Group):
    """How clients authenticate where the protocol is SASL_PLAINTEXT or SASL_SSL."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "PLAIN"
    username: str = ""
    password: SecretStr = SecretStr("")
    password_file: Path | None = None
    token_file: Path | None = None


class SslSettings(Group):
    """Certificates where the protocol is SSL or SASL_SSL."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


class ClientSettings(Group):
    """How the clients name themselves, fetch, commit and stay in the group."""

    client_id: str = "tokenbatch"
    session_timeout_s: float = Field(default=30.0, ge=1.0, le=1800.0)
    max_poll_records: ClassVar[int] = 1000
    """Some 10 ms of decoding on the event loop; a larger poll would delay calls by more."""
    commit_interval_s: ClassVar[float] = 0.2
    """A crash repeats the records of this time; a broker takes five commits a second of each partition easily."""
    max_commit_span: ClassVar[int] = 50_000
    """Records beyond the committed offset, each of which is kept in memory and repeated after a crash."""
    drain_timeout_s: ClassVar[float] = 10.0
    """Time to finish the records of a revoked partition: other members wait for it in the rebalance."""


class KafkaSettings(BrokerSettings):
    """The Kafka cluster, its topics, and how far intake may run ahead."""

    enabled: bool = Field(default=True, description="read requests from Kafka")
    bootstrap_servers: Servers = Field(default="localhost:9092", description="host:port, several separated by commas")
    topics: tuple[TopicSettings, ...] = Field(
        default=(TopicSettings(name="embed.requests.v1"),), description="the request topics", min_length=1
    )
    reply_topic: str = Field(default="embed.replies.v1", description="topic of the replies to requests that name none")
    allowed_reply_topics: tuple[str, ...] = Field(
        default=(), description="further topics a request may name; shell patterns such as team-a.* are allowed"
    )
    group_id: str = Field(default="tokenbatch", description="consumer group")
    create_topics: bool = Field(default=False, description="create missing topics at start")
    partitions: PositiveInt = Field(default=8, description="partitions of each topic that is created")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="as Kafka's security.protocol"
    )
    sasl: SaslSettings = Field(
        default=SaslSettings(),
        description="mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; username; password, or"
        " password_file that holds it; token_file: bearer token for OAUTHBEARER, read for each connection",
    )
    ssl: SslSettings = Field(
        default=SslSettings(),
        description="PEM files. ca_file: CA of the brokers (empty: the system's); cert_file and key_file: this"
        " client's",
    )
    client: ClientSettings = Field(
        default=ClientSettings(),
        description="client_id and session_timeout_s: as in Kafka's consumer; brokers take 6 to 1800 s unless their"
        " group.min.session.timeout.ms or group.max.session.timeout.ms says otherwise",
    )

    @property
    @override
    def intakes(self) -> tuple[TopicSettings, ...]:
        return self.topics

    def replies_of(self, topic: TopicSettings) -> str:
        return topic.reply_topic or OTHER_REPLIES.get(topic.task, self.reply_topic)

    @property
    def reply_topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.replies_of(topic) for topic in self.topics))

    @property
    def delta_topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(topic.delta_topic for topic in self.topics if topic.delta_topic))

    @model_validator(mode="after")
    def _topics_are_read_once(self) -> Self:
        names = [topic.name for topic in self.topics]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)}: configured twice: list each topic once")
        if both := sorted({*names} & {*self.reply_topics}):
            raise ValueError(f"{', '.join(both)}: replies need a topic that is not read")
        return self

    @model_validator(mode="after")
    def _deltas_have_topics_of_their_own(self) -> Self:
        for topic in self.topics:
            if topic.delta_topic and topic.task != "generate":
                raise ValueError(f"topic {topic.name} has task {topic.task}: delta_topic needs task generate")
        taken = {topic.name for topic in self.topics} | {*self.reply_topics}
        if both := sorted(taken & {*self.delta_topics}):
            raise ValueError(f"{', '.join(both)}: delta_topic must be a separate topic, neither read nor replied to")
        return self


class CanarySettings(Group):
    """A new revision of a model, which serves a share of the requests."""

    revision: str = Field(description="the new revision, as its servers give it", min_length=1)
    share: float = Field(
        ge=0,
        le=1,
        description="of the requests that name no revision, chosen by their ids; 0: none, 1: all",
    )


class ModelSettings(Group):
    """One model and the servers that run it."""

    name: str = Field(description="the name requests use; must be the name its servers give")
    aliases: tuple[str, ...] = Field(default=(), description="other names for it")
    servers: tuple[str, ...] = Field(
        description="host:port of each model server, or k8s://SERVICE.NAMESPACE:PORT for all endpoints of a Service,"
        " or dns://NAME:PORT for all addresses of a name, which is resolved every 2 s",
        min_length=1,
    )
    scales_to_zero: bool = Field(
        default=False,
        description="an autoscaler may remove its last server: then calls wait for a server until their deadline, and"
        " the aggregator is ready without one",
    )
    task: Literal["auto", "both"] = Field(
        default="auto",
        description="both: some servers embed and some generate, or do both; requests for a task wait for its first"
        " server. auto: a task that no server of the model does is refused, 5 s after"
        " servers of the other task have come",
    )
    canary: CanarySettings | None = Field(
        default=None,
        description="{revision, share}: a new revision, and its share (0 to 1) of the requests that name no revision,"
        " chosen by their ids; while it has no server, other revisions serve them",
    )

    @field_validator("servers")
    @classmethod
    def _can_be_read(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for address in servers:
            check_address(address)
        return servers


class BatchingSettings(Group):
    """The queue, packing and replicas; see the package aggregator.scheduler."""

    token_budget: PositiveInt | None = Field(
        default=None, description="tokens per batch; empty: the saturation point that each model server measured"
    )
    coalesce: bool = Field(default=True, description="compute identical inputs once")
    cache_bytes: NonNegativeInt = Field(
        default=0,
        description="bytes of computed rows that each model revision keeps, to answer equal inputs without computing"
        " them again; beside limits.memory_bytes; 0: none",
    )
    max_held_tokens: PositiveInt = Field(
        default=500_000,
        description="tokens queued or in flight, per model; intake of priority background from Kafka and Redis stops"
        " at 50 % of it, default at 75 %",
    )
    max_unavailable_s: PositiveFloat | None = Field(
        default=None, description="how long requests from Kafka and Redis wait for a model server; empty: without limit"
    )


_LEAST_MEMORY_BYTES = 16 * 1024 * 1024
"""Less would refuse single requests of the largest size."""


class LimitsSettings(Group):
    """The bounds of one process."""

    memory_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=_LEAST_MEMORY_BYTES,
        description="bytes that requests hold together, from their arrival until their replies are taken: half for"
        " Kafka and Redis, which pause at it, and half for callers, who are refused; all for either where the other is"
        " off. The process takes some 300 MiB beside it",
    )


class SlaSettings(Group):
    """The latency target; without one, token budgets are the measured saturation points."""

    latency_s: PositiveFloat | None = Field(
        default=None,
        description="latency target of a request; token budgets are adjusted to meet it. Empty: no target, and token"
        " budgets are the saturation points",
    )


class DemandSettings(Group):
    """The port of the scaler, which asks for the demand."""

    bind: OptionalBind = Field(
        default="",
        description="host:port where the scaler asks for the demand; port 0 picks a free one; empty: none. The chart"
        " sets 0.0.0.0:50052",
    )


class TokenizerSettings(Group):
    """Tokenizers come from the model servers."""

    cache: Path = Path("~/.cache/tokenbatch/tokenizers")
    fast: bool = True


class LifecycleSettings(Group):
    """Start and stop."""

    grace_s: PositiveFloat = 25.0
    connect_timeout_s: ClassVar[float] = 30.0
    """Time for brokers that start together with the aggregator; afterwards the process ends, and is started again."""


class AggregatorSettings(Group):
    """The settings of the aggregator; `aggregator/all_settings.py` adds those of wings."""

    other_names: ClassVar[Mapping[str, str]] = AGGREGATOR_NAMES

    kafka: KafkaSettings = KafkaSettings()
    grpc: GrpcSettings = GrpcSettings()
    http: HttpSettings = HttpSettings()
    tenants: TenantSettings = TenantSettings()
    models: tuple[ModelSettings, ...] = Field(
        default=(ModelSettings(name="all-minilm-l6-v2", aliases=("minilm",), servers=("localhost:50061",)),),
        description="the models, the first one for requests that name none",
        min_length=1,
    )
    batching: BatchingSettings = BatchingSettings()
    limits: LimitsSettings = LimitsSettings()
    sla: SlaSettings = SlaSettings()
    demand: DemandSettings = DemandSettings()
    lifecycle: LifecycleSettings = Field(
        default=LifecycleSettings(),
        description="grace_s: time from SIGTERM to the exit; records that are not finished by then are replayed",
    )
    telemetry: TelemetrySettings = TelemetrySettings()
    tokenizer: TokenizerSettings = Field(
        default=TokenizerSettings(),
        description="cache: folder of the tokenizer files that model servers send; fast: a faster tokenizer for"
        " printable ASCII, while it agrees with the model's own",
    )

    @property
    def brokers(self) -> Mapping[str, BrokerSettings]:
        """The groups of brokers, enabled or not, by their names."""
        return {name: group for name, group in self if isinstance(group, BrokerSettings)}

    def group(self, of: type[G]) -> G | None:
        """The group of this type, if a wing brought it."""
        return next((group for _, group in self if isinstance(group, of)), None)

    @field_validator("models")
    @classmethod
    def _have_names_of_their_own(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        names = _names(models)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)}: several models have this name or alias")
        return models

    @model_validator(mode="after")
    def _topics_name_configured_models(self) -> Self:
        names = _names(self.models)
        for place in (intake for broker in self.brokers.values() if broker.enabled for intake in broker.intakes):
            if place.model and place.model not in names:
                raise ValueError(
                    f"{place.name}: its model {place.model} is not configured: use one of {', '.join(names)}"
                )
        return self


def _names(models: Sequence[ModelSettings]) -> list[str]:
    """Names and aliases; each of a model once."""
    return [name for model in models for name in dict.fromkeys((model.name, *model.aliases))]
