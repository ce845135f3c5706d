"""Configuration of the gRPC front door: the listener, its limits, its certificates, its callers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

from aggregator.errors import StartError
from aggregator.observability.telemetry import TelemetrySettings
from aggregator.replicas.discovery import changes, parse
from aggregator.settings.strict import StrictSettings


class Group(BaseModel):
    """One group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def check_address(address: str) -> None:
    """Raises ValueError for an address that begins like one whose endpoints change, and cannot be read."""
    if changes(address):
        try:
            parse(address)
        except StartError as error:
            raise ValueError(str(error)) from error


class TlsSettings(Group):
    """Certificates of the gRPC port; files that change are read anew, without a restart."""

    cert_file: Path | None = Field(default=None, description="certificate chain, PEM; empty: no TLS")
    key_file: Path | None = Field(default=None, description="its private key, PEM, not encrypted")
    client_ca_file: Path | None = Field(
        default=None, description="CA of client certificates, PEM; given, every client must have one (mTLS)"
    )


class AuthenticationSettings(Group):
    """Who may call, and as which tenant; with any of these set, a call without a credential is refused."""

    tokens_file: Path | None = Field(
        default=None,
        description="bearer tokens, one a line: TENANT TOKEN, or TENANT sha256:DIGEST (hexadecimal) of the token",
    )
    jwks_file: Path | None = Field(default=None, description="JSON Web Key Set whose keys sign bearer tokens (JWT)")
    jwt_issuer: str = Field(default="", description="the iss that a JWT must have; empty: any")
    jwt_audience: str = Field(default="", description="the aud that a JWT must have; empty: any")
    jwt_tenant_claim: str = Field(default="sub", description="the claim of a JWT that names the tenant")
    client_certificates: bool = Field(
        default=False,
        description="the tenant is the client certificate's SPIFFE id, or else its common name, or else its first DNS"
        " name; a certificate without any is refused",
    )

    @property
    def required(self) -> bool:
        """Whether callers must show who they are; then no field of a message names a tenant, on Kafka neither."""
        return self.tokens_file is not None or self.jwks_file is not None or self.client_certificates


class GrpcSettings(Group):
    """The gRPC front door."""

    enabled: bool = Field(default=True, description="serve gRPC at all")
    bind: str = Field(default="0.0.0.0:50051", description="host:port; port 0 picks a free one")
    max_message_bytes: PositiveInt = Field(default=4 * 1024 * 1024, description="of one request")
    max_connection_age_s: PositiveFloat = Field(
        default=1800.0, description="a connection is closed at this age (give or take 10 %), so that load spreads anew"
    )
    reflection: bool | None = Field(
        default=None,
        description="describe the service to tools such as grpcurl, which need no credential for it; empty: unless"
        " `grpc.authentication` is on",
    )
    tls: TlsSettings = TlsSettings()
    authentication: AuthenticationSettings = AuthenticationSettings()

    @property
    def describes_itself(self) -> bool:
        """Whether reflection is served."""
        return not self.authentication.required if self.reflection is None else self.reflection


class TenantSettings(Group):
    """What tenants may use, over all sources."""

    tokens_per_s: PositiveFloat | None = Field(
        default=None, description="of each tenant, at all aggregators together; empty: no limit"
    )
    rates: dict[str, PositiveFloat] = Field(default={}, description="tokens per second of single tenants")
    aggregators: str = Field(
        default="1",
        coerce_numbers_to_str=True,
        description="how many ready aggregators divide a tenant's rate: a number, or k8s://SERVICE.NAMESPACE:PORT or"
        " dns://NAME:PORT whose endpoints are counted",
    )

    @field_validator("aggregators")
    @classmethod
    def _can_be_counted(cls, aggregators: str) -> str:
        check_address(aggregators)
        if not changes(aggregators) and not (aggregators.isdecimal() and int(aggregators)):
            raise ValueError("give a number of 1 or more, k8s://SERVICE.NAMESPACE:PORT or dns://NAME:PORT")
        return aggregators

    @property
    def limited(self) -> bool:
        """Whether any tenant has a rate."""
        return self.tokens_per_s is not None or bool(self.rates)


ENV_PREFIX = "TOKENBATCH_AGGREGATOR_"


class TopicSettings(Group):
    """One query topic and what it says for requests that say nothing."""

    name: str = Field(description="the topic to read")
    model: str = Field(default="", description="model of requests that name none; empty: the first one configured")
    priority: Literal["interactive", "default", "background"] = Field(
        default="default", description="class of requests that name none"
    )
    tenant: str = Field(default="", description="tenant of every request of this topic")
    task: Literal["embed", "generate"] = Field(default="embed", description="what its records ask for")
    reply_topic: str = Field(
        default="",
        description="where its replies go that name no reply topic; empty: kafka.reply_topic, or generate.replies.v1",
    )
    delta_topic: str = Field(
        default="", description="where its texts are written as they grow, besides the replies; empty: nowhere"
    )


_TEXT_REPLY_TOPIC = "generate.replies.v1"


class KafkaSettings(Group):
    """The Kafka cluster, its topics, and how far intake may run ahead."""

    enabled: bool = Field(default=True, description="read requests from Kafka at all")
    bootstrap_servers: str = Field(default="localhost:9092", description="host:port, several separated by commas")
    topics: tuple[TopicSettings, ...] = Field(
        default=(TopicSettings(name="embed.requests.v1"),), description="the query topics", min_length=1
    )
    reply_topic: str = Field(default="embed.replies.v1", description="where replies go that name no reply topic")
    allowed_reply_topics: tuple[str, ...] = Field(
        default=(), description="further topics a request may name; shell patterns such as team-a.* are allowed"
    )
    group_id: str = Field(default="tokenbatch", description="consumer group")
    client_id: str = Field(default="tokenbatch", description="client id, for the broker's logs and quotas")
    create_topics: bool = Field(default=False, description="create missing topics at start")
    partitions: PositiveInt = Field(default=8, description="of topics that are created")
    replication_factor: int = Field(default=-1, description="of topics that are created; -1: the broker's default")
    max_poll_records: PositiveInt = Field(default=1000, description="records taken per fetch at the most")
    max_reply_bytes: PositiveInt = Field(
        default=900_000, description="a request whose reply would be larger is refused"
    )
    commit_interval_s: PositiveFloat = Field(default=0.2, description="offsets are committed this often")
    max_commit_span: PositiveInt = Field(
        default=50_000,
        description="records of a partition beyond the committed offset, answered or not, above which it is paused",
    )
    drain_timeout_s: PositiveFloat = Field(default=10.0, description="to finish what a revoked partition has under way")
    session_timeout_s: PositiveFloat = Field(default=30.0, description="the group's session time-out")
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(default="none", description="of replies")
    skip_corrupt_batches: bool = Field(default=False, description="step over record batches whose checksum is wrong")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(default="PLAINTEXT")
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(default="PLAIN")
    sasl_username: str = Field(default="")
    sasl_password: SecretStr = Field(default=SecretStr(""))
    sasl_password_file: Path | None = Field(default=None, description="read instead of sasl_password")
    sasl_token_file: Path | None = Field(default=None, description="bearer token for OAUTHBEARER, read anew each time")
    ssl_ca_file: Path | None = Field(default=None)
    ssl_cert_file: Path | None = Field(default=None)
    ssl_key_file: Path | None = Field(default=None)

    def replies_of(self, topic: TopicSettings) -> str:
        """Where the replies to a topic's records go that name none."""
        return topic.reply_topic or (self.reply_topic if topic.task == "embed" else _TEXT_REPLY_TOPIC)

    @property
    def reply_topics(self) -> tuple[str, ...]:
        """Every one of those, once."""
        return tuple(dict.fromkeys(self.replies_of(topic) for topic in self.topics))

    @property
    def delta_topics(self) -> tuple[str, ...]:
        """Every topic to which texts are written as they grow, once."""
        return tuple(dict.fromkeys(topic.delta_topic for topic in self.topics if topic.delta_topic))

    @model_validator(mode="after")
    def _deltas_have_topics_of_their_own(self) -> Self:
        for topic in self.topics:
            if topic.delta_topic and topic.task != "generate":
                raise ValueError(f"topic {topic.name} asks for no texts: delta_topic is for one with task generate")
        taken = {topic.name for topic in self.topics} | {*self.reply_topics}
        if both := sorted(taken & {*self.delta_topics}):
            raise ValueError(f"{', '.join(both)}: delta_topic must be a topic of its own, neither read nor replied to")
        return self


class CanarySettings(Group):
    """A revision of a model on trial."""

    revision: str = Field(description="the revision on trial, as its servers give it", min_length=1)
    share: float = Field(
        ge=0,
        le=1,
        description="of the requests that pin no revision, chosen by their ids; 0: none, 1: all",
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
        description="an autoscaler takes its last server away when nothing comes: calls then wait for the first one"
        " until their deadline, and the aggregator is ready without any",
    )
    canary: CanarySettings | None = Field(
        default=None,
        description="{revision, share}: a revision on trial among those of the servers, and which share (0 to 1) of the"
        " requests that pin none it serves, chosen by their ids; while it has no server, others serve them",
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
    max_held_tokens: PositiveInt = Field(
        default=500_000,
        description="tokens queued or under way, per model; background stops at half of it, default at 75 %",
    )
    max_unavailable_s: PositiveFloat | None = Field(
        default=None, description="Kafka requests wait this long for a model server; empty: without end"
    )


class SlaSettings(Group):
    """A time that token budgets are steered by, live; without one they are the measured saturation points."""

    target_s: PositiveFloat | None = Field(default=None, description="of one engine step; or give latency_s")
    latency_s: PositiveFloat | None = Field(
        default=None, description="of a whole answer, from which the step's time follows; or give target_s"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.target_s is not None and self.latency_s is not None:
            raise ValueError("give target_s or latency_s, not both")
        return self


class DemandSettings(Group):
    """What the scaler asks: how much work there is, on a port of its own."""

    bind: str = Field(
        default="",
        description="host:port; port 0 picks a free one; empty: no scaler asks. The chart sets 0.0.0.0:50052",
    )


class TokenizerSettings(Group):
    """Tokenizers come from the model servers."""

    cache: Path = Field(default=Path("~/.cache/tokenbatch/tokenizers"), description="their files, by fingerprint")
    fast: bool = Field(default=True, description="take the fast path for printable ASCII, where it proved itself")


class LifecycleSettings(Group):
    """Start and stop."""

    grace_s: PositiveFloat = Field(
        default=25.0, description="from SIGTERM to the exit; what is unfinished then is replayed"
    )
    connect_timeout_s: PositiveFloat = Field(default=30.0, description="for brokers at start")


class AggregatorSettings(StrictSettings):
    """Everything the aggregator can be told."""

    kafka: KafkaSettings = KafkaSettings()
    grpc: GrpcSettings = GrpcSettings()
    tenants: TenantSettings = TenantSettings()
    models: tuple[ModelSettings, ...] = Field(
        default=(ModelSettings(name="all-minilm-l6-v2", aliases=("minilm",), servers=("localhost:50061",)),),
        min_length=1,
    )
    batching: BatchingSettings = BatchingSettings()
    sla: SlaSettings = SlaSettings()
    demand: DemandSettings = DemandSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
