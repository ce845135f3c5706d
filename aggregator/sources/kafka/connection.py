"""Connect to the Kafka cluster: the options of clients, and the topics, which are checked or created at start."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import collect_hosts, create_conn
from typing_extensions import override

from aggregator.settings.aggregator import KafkaSettings, SaslSettings
from aggregator.sources.kafka.aiokafka_internals import topic_ids
from aggregator.sources.kafka.offsets import Committed, Partition
from aggregator.sources.wire.values import DEAD_LETTER_SUFFIX
from k8s.pod.addresses import split_servers
from k8s.pod.errors import StartError
from k8s.pod.files import all_readable, paths
from k8s.pod.trust import trusting

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5  # a broker that restarts takes seconds
_LOOK_EVERY_S, _LOOK_TIMEOUT_S = 5.0, 1.0  # how soon a topic made anew is noticed; how long its member may wait
_ASK_MS = 5000  # then another broker is asked
_CONNECT_S = 3.0  # to say why none answers
_TOKEN_HINT = "; has the token in kafka.sasl.token_file expired? A broker ends such a connection without a word"
_REFUSED = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.GroupAuthorizationFailedError,
)


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """A bearer token in a file that another process renews."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    async def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - theirs is empty
        return (await asyncio.to_thread(self._path.read_text)).strip()


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """The options of every aiokafka client. Raises StartError for files that cannot be read, and bad addresses."""
    split_servers(settings.bootstrap_servers)  # an option of a command is no setting, which was checked
    _keep_secrets_out_of_logs()
    options: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in settings.bootstrap_servers.split(",") if server.strip()],
        "client_id": settings.client.client_id,
        "security_protocol": settings.security_protocol,
    }
    try:
        if settings.security_protocol in {"SSL", "SASL_SSL"}:
            all_readable(settings.ssl, "kafka.ssl")
            options["ssl_context"] = _ssl_context(settings)
        if settings.security_protocol.startswith("SASL_"):
            all_readable(settings.sasl, "kafka.sasl")
            options |= _sasl(settings.sasl)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(f"{name} {path}" for name, path in paths(settings.ssl, "kafka.ssl"))
        raise StartError(f"kafka: {files}: one is no PEM file, or the key is another certificate's: {error}") from error
    return options


@contextlib.contextmanager
def at_work(*, started: bool = True) -> Generator[None]:
    """Raise KafkaError for StartError once the process has `started`: a file caught in its rotation is soon whole."""
    try:
        yield
    except StartError as error:
        if not started:
            raise
        raise kafka_errors.KafkaConnectionError(str(error)) from error


def _keep_secrets_out_of_logs() -> None:
    """At debug level aiokafka logs what it sends: passwords and tokens in SASL's exchange, and queries."""
    client = logging.getLogger("aiokafka")
    if client.getEffectiveLevel() < logging.INFO:
        client.setLevel(logging.INFO)


async def prepare_topics(settings: KafkaSettings, timeout_s: float, *, replies: bool = True) -> None:
    """Make sure that every query, reply and dead-letter topic is there, creating them where that is allowed.

    Without `replies` only the topics that are read.

    Raises StartError that says what to do: no broker reached, not authorised, a topic missing.
    """
    async with connected(settings, timeout_s) as admin:
        partitions = await topics_seen(admin)
        await compacted_topics(admin, settings, partitions)
        wanted = topics_wanted(settings) if replies else [topic.name for topic in settings.topics]
        if missing := topics_missing(settings, partitions, wanted):
            await _create(admin, settings, missing, partitions, timeout_s)


async def reach(settings: KafkaSettings, timeout_s: float) -> None:
    """Connect to a broker and log in, once. Raises StartError that says why none can be reached."""
    if (reason := await _unreachable(client_options(settings), timeout_s)) is not None:
        raise StartError(f"kafka: {reason}")


async def committed_offsets(
    settings: KafkaSettings, tps: Collection[TopicPartition]
) -> dict[TopicPartition, Committed]:
    """What the group has of each partition, and the ids of the topics. Raises KafkaError or OSError."""
    async with _client(settings) as admin:
        found = await group_offsets(admin, settings.group_id, tps)
        ids = await topic_ids(admin, sorted({tp.topic for tp in tps}))
        return {tp: each._replace(topic_id=ids.get(tp.topic, "")) for tp, each in found.items()}


async def group_offsets(
    admin: AIOKafkaAdminClient, group_id: str, tps: Collection[TopicPartition]
) -> dict[TopicPartition, Committed]:
    """What the group has of each partition. Raises KafkaError.

    A consumer takes an answer that holds only an error for no offset, and would read the log again from its start.
    """
    found = await admin.list_consumer_group_offsets(group_id, partitions=list(tps))
    if missing := [f"{tp.topic}/{tp.partition}" for tp in tps if tp not in found]:
        raise kafka_errors.KafkaError(f"the coordinator does not list {', '.join(missing)}")
    return {tp: Committed(found[tp].offset, found[tp].metadata or "") for tp in tps}


async def topic_partitions(settings: KafkaSettings) -> dict[str, int]:
    """The number of partitions of each visible topic, as a broker reports it. Raises KafkaError or OSError."""
    async with _client(settings) as admin:
        return await topics_seen(admin)


@contextlib.asynccontextmanager
async def _client(settings: KafkaSettings) -> AsyncGenerator[AIOKafkaAdminClient, None]:
    with at_work():
        admin = AIOKafkaAdminClient(**client_options(settings), request_timeout_ms=_ASK_MS)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


def topics_wanted(settings: KafkaSettings) -> list[str]:
    """Every topic that these settings name."""
    return [*(topic.name for topic in settings.topics), *topics_written(settings)]


def topics_written(settings: KafkaSettings) -> list[str]:
    """The topics of replies, of texts as they grow, and of dead letters."""
    dead = (topic.name + DEAD_LETTER_SUFFIX for topic in settings.topics)
    return [*settings.reply_topics, *settings.delta_topics, *dead]


def topics_missing(settings: KafkaSettings, partitions: Collection[str], wanted: Sequence[str]) -> list[str]:
    """The topics to create. Raises StartError if there are some and `create_topics` is off."""
    missing = [name for name in wanted if name not in partitions]
    if missing and not settings.create_topics:
        raise StartError(
            f"kafka: {listed(missing)} missing, or not visible to this client: create what is missing, grant"
            " Describe, Read and Write, or set kafka.create_topics to true"
        )
    return missing


def listed(names: Collection[str]) -> str:
    """The topics as the subject of a sentence, with its verb."""
    return f"topic {', '.join(names)} is" if len(names) == 1 else f"topics {', '.join(names)} are"


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    context = trusting(settings.ssl.ca_file)
    if settings.ssl.cert_file is not None:
        context.load_cert_chain(settings.ssl.cert_file, settings.ssl.key_file)
    return context


def _sasl(settings: SaslSettings) -> dict[str, Any]:
    if settings.mechanism == "OAUTHBEARER":
        if settings.token_file is None:
            raise StartError("kafka: OAUTHBEARER needs kafka.sasl.token_file")
        settings.token_file.read_bytes()  # now rather than at the first connection
        return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": _TokenFile(settings.token_file)}
    password = settings.password.get_secret_value()
    if settings.password_file is not None:
        password = settings.password_file.read_text().rstrip("\r\n")
    if not settings.username or not password:
        raise StartError(f"kafka: {settings.mechanism} needs kafka.sasl.username and a password")
    return {
        "sasl_mechanism": settings.mechanism,
        "sasl_plain_username": settings.username,
        "sasl_plain_password": password,
    }


@contextlib.asynccontextmanager
async def connected(settings: KafkaSettings, timeout_s: float) -> AsyncGenerator[AIOKafkaAdminClient, None]:
    """An admin client; connecting is retried until the time-out. Raises StartError for what the cluster refuses."""
    options = client_options(settings)
    hint = _TOKEN_HINT if "sasl_oauth_token_provider" in options else ""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    admin = AIOKafkaAdminClient(**options, request_timeout_ms=max(1000, int(timeout_s * 500)))
    try:
        while True:
            try:
                await admin.start()
                break
            except kafka_errors.KafkaError as error:
                reason = await _unreachable(options, _CONNECT_S) or repr(error)
                if asyncio.get_running_loop().time() + _RETRY_S > deadline_s:
                    raise StartError(f"kafka: {reason}{hint}") from None
                await asyncio.sleep(_RETRY_S)
        yield admin
    except _REFUSED as error:
        raise StartError(f"kafka: not authorised: {error}; grant this client its rights") from error
    except (kafka_errors.KafkaError, TimeoutError) as error:
        unexpected = f"kafka: {settings.bootstrap_servers} answered with an unexpected error: {error!r}{hint}"
        raise StartError(unexpected) from error
    finally:
        await admin.close()


async def _unreachable(options: Mapping[str, Any], timeout_s: float) -> str | None:
    """Why no broker can be reached within the time-out; None if one can. Raises StartError if waiting cannot help."""
    security = {name: value for name, value in options.items() if name != "bootstrap_servers"}
    reasons = await asyncio.gather(
        *(_why_not(host, port, security, timeout_s) for host, port, _ in collect_hosts(options["bootstrap_servers"]))
    )
    if None in reasons:
        return None
    where = ", ".join(reason for reason in reasons if reason is not None)
    return f"no broker answers at {where}; is kafka.bootstrap_servers right, and kafka.security_protocol?"


async def _why_not(host: str, port: int, security: Mapping[str, Any], timeout_s: float) -> str | None:
    """Why a broker cannot be reached. Raises StartError if waiting cannot help."""
    try:
        async with asyncio.timeout(timeout_s):
            connection = await create_conn(host, port, request_timeout_ms=int(timeout_s * 1000), **security)
    except (kafka_errors.SaslAuthenticationFailed, kafka_errors.UnsupportedSaslMechanismError) as error:
        raise StartError(f"kafka: {host}:{port} refused the credentials: {error}") from error
    except ssl.SSLError as error:
        raise StartError(f"kafka: no TLS connection with {host}:{port}: {error}") from error
    except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
        return f"{host}:{port} ({str(error) or type(error).__name__})"
    connection.close()
    return None


async def topics_seen(admin: AIOKafkaAdminClient) -> dict[str, int]:
    """How many partitions each visible topic has. All are listed, as asking for one by name can create it."""
    return {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics(None)}


async def _create(
    admin: AIOKafkaAdminClient,
    settings: KafkaSettings,
    names: Sequence[str],
    existing: Mapping[str, int],
    timeout_s: float,
) -> None:
    counts = [max(settings.partitions, existing.get(name.removesuffix(DEAD_LETTER_SUFFIX), 0)) for name in names]
    # Replicas: -1, the broker's default.replication.factor; aiokafka also requires an assignment.
    topics = [NewTopic(name, count, -1, {}) for name, count in zip(names, counts, strict=True)]
    response: Any = await admin.create_topics(topics, timeout_ms=int(timeout_s * 1000))
    for name, code, message, *_ in response.topic_errors:
        error = kafka_errors.for_code(code)
        if error in _REFUSED:
            raise StartError(f"kafka: not authorised to create topic {name}: create it, or grant Create on it")
        if error not in {kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError}:
            raise StartError(f"kafka: topic {name} cannot be created: {message or error.__name__}")
    async with asyncio.timeout(timeout_s):
        while not set(names) <= set(await topics_seen(admin)):  # noqa: ASYNC110 - new metadata gives no signal
            await asyncio.sleep(_RETRY_S)


async def topic_settings(admin: AIOKafkaAdminClient, names: Sequence[str], key: str) -> dict[str, str]:
    """A setting of each topic, without topics that this client may not describe."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, {key: None}) for name in names]
    found: dict[str, str] = {}
    responses: Any = await admin.describe_configs(resources) if resources else ()
    for response in responses:
        for _, _, _, name, entries in response.resources:
            for _, value, *_ in entries:
                found[name] = str(value)
    return found


async def compacted_topics(
    admin: AIOKafkaAdminClient, settings: KafkaSettings, partitions: Collection[str]
) -> list[str]:
    """The reply topics that are compacted, which a warning is worth: records without a key get one.

    Raises StartError for a compacted topic of dead letters or deltas: of two with one key only the later would stay.
    """
    several = {*settings.delta_topics, *(topic.name + DEAD_LETTER_SUFFIX for topic in settings.topics)}
    names = sorted(several.union(settings.reply_topics).intersection(partitions))
    policies = await topic_settings(admin, names, "cleanup.policy")
    compacted = [name for name in names if "compact" in policies.get(name, "")]
    if wrong := [name for name in compacted if name in several]:
        raise StartError(
            f"kafka: {listed(wrong)} compacted, so that of two records with one key only the later one stays: set"
            " cleanup.policy to delete there"
        )
    return compacted


class TopicWatch:
    """`missing` topics are not there, or forbidden to this client; `subscribed` are those to subscribe to.

    While aiokafka has a partition of a topic that was deleted, it asks for metadata without a pause.
    """

    def __init__(self, client: Any, topics: Sequence[str]) -> None:
        self.subscribed = self._topics = topics
        self.missing: Sequence[str] = []
        self._client = client
        self._next_s = 0.0

    async def look(self, partitions: Mapping[TopicPartition, Partition], now_s: float) -> bool:
        """Update the log ends every few seconds; returns whether to subscribe again."""
        gone = not all(self._client.partitions_for_topic(name) for name in self.subscribed)
        if not gone and now_s < self._next_s:
            return False
        self._next_s = now_s + _LOOK_EVERY_S
        before = self.missing
        with contextlib.suppress(kafka_errors.KafkaError, TimeoutError):
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                if gone or self.missing:
                    self._found(await self._client.topics())
                if self.missing == before:  # fetches report only the ends of partitions that are read
                    for tp, end in (await self._client.end_offsets(list(partitions))).items():
                        partitions[tp].log_end = max(partitions[tp].log_end, end)
        return self.missing != before

    def _found(self, visible: set[str]) -> None:
        missing = [name for name in self._topics if name not in visible]
        if missing != self.missing:
            if missing:
                _LOG.error("topics are missing or forbidden", extra={"topics": missing})
            else:
                _LOG.info("all topics are there")
        self.missing = missing
        self.subscribed = [name for name in self._topics if name in visible] or self._topics
