"""Settings of Redis: its servers, the streams of requests, and where replies go."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, NonNegativeInt, PositiveInt, SecretStr, model_validator
from typing_extensions import override

from aggregator.settings.brokers import OTHER_REPLIES, BrokerSettings, IntakeSettings
from k8s.pod.addresses import Servers
from k8s.pod.settings import Group


class StreamSettings(IntakeSettings):
    """One request stream, and the defaults for its requests."""

    name: str = Field(description="the key of the stream to read", min_length=1)
    reply_stream: str = Field(
        default="",
        description="stream of the replies to requests that name none; empty: redis.reply_stream, or"
        " generate.replies.v1, rank.replies.v1 or token_vectors.replies.v1 for the task of that name",
    )


class RedisTlsSettings(Group):
    """TLS to the servers."""

    enabled: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


class RedisUserSettings(Group):
    """The login: an ACL user, or the default one."""

    username: str = ""
    password: SecretStr = SecretStr("")
    password_file: Path | None = None


class RedisClientSettings(Group):
    """How long replies are kept, and when entries are taken over."""

    database: NonNegativeInt = 0
    max_stream_length: PositiveInt = 100_000
    list_ttl_s: ClassVar[float] = 60.0
    """A caller waits for its reply in a list; nobody reads one whose caller has left."""
    takeover_idle_s: ClassVar[float] = 30.0
    """Silence of an aggregator after which others take over its entries; as Kafka's session time-out."""


class RedisSettings(BrokerSettings):
    """The Redis servers, and the streams of requests and replies."""

    enabled: bool = Field(default=False, description="read requests from Redis")
    servers: Servers = Field(
        default="localhost:6379",
        description="host:port; with redis.sentinel the Sentinels, with redis.cluster some nodes, separated by commas",
    )
    sentinel: str = Field(default="", description="name of the master that the Sentinels watch; empty: no Sentinels")
    cluster: bool = Field(default=False, description="the servers are a Redis Cluster")
    user: RedisUserSettings = Field(
        default=RedisUserSettings(),
        description="username of an ACL user, empty: Redis's default user; password, or password_file that holds it,"
        " read at start",
    )
    tls: RedisTlsSettings = Field(
        default=RedisTlsSettings(),
        description="enabled; PEM files: ca_file: CA of the servers (empty: the system's); cert_file and key_file: this"
        " client's",
    )
    streams: tuple[StreamSettings, ...] = Field(
        default=(StreamSettings(name="embed.requests.v1"),), description="the request streams", min_length=1
    )
    reply_stream: str = Field(
        default="embed.replies.v1", description="stream of the replies to requests that name none"
    )
    allowed_replies: tuple[str, ...] = Field(
        default=(),
        description="further places a request may name in reply_to: streams, and lists as list:KEY; shell patterns such"
        " as list:team-a:* are allowed",
    )
    group_id: str = Field(default="tokenbatch", description="consumer group", min_length=1)
    client: RedisClientSettings = Field(
        default=RedisClientSettings(),
        description="database: its number; max_stream_length: entries kept of each stream of replies or dead letters,"
        " about",
    )

    @property
    @override
    def intakes(self) -> tuple[StreamSettings, ...]:
        return self.streams

    def replies_of(self, stream: StreamSettings) -> str:
        return stream.reply_stream or OTHER_REPLIES.get(stream.task, self.reply_stream)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.sentinel and self.cluster:
            raise ValueError("give sentinel or cluster, not both")
        if self.cluster and self.client.database:
            raise ValueError(f"client.database {self.client.database}: a Cluster has only database 0")
        names = [stream.name for stream in self.streams]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)}: configured twice; a stream is read once")
        if both := sorted({self.replies_of(stream) for stream in self.streams} & {*names}):
            raise ValueError(f"{', '.join(both)}: replies need a stream that is not read")
        return self
