"""Connect to Redis: one server, a master that Sentinels watch, or a Cluster; and check its streams at start."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError

from aggregator.errors import is_cancelled
from aggregator.observability.metrics import Metrics
from aggregator.sources.wire.values import DEAD_LETTER_SUFFIX
from aggregator.wings.redis.codec import REDIS, Command
from aggregator.wings.redis.settings import RedisSettings
from k8s.pod.addresses import split_servers
from k8s.pod.errors import StartError
from k8s.pod.files import all_readable
from k8s.pod.trust import NOT_DEMANDED

_LOG = logging.getLogger(__name__)
_UNHEALTHY_S = 10.0  # shorter trouble, such as a failover, passes by itself
TRANSIENT = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError, TimeoutError)
"""The errors that any command may raise."""

_RETRY_S, _TIMEOUT_S = 0.5, 5.0  # well above the second of a blocking read
_REASONS: dict[str, tuple[tuple[str, ...], tuple[type[Exception], ...]]] = {
    "wrong_type": (("WRONGTYPE",), ()),
    "no_group": (("NOGROUP",), ()),
    "not_persisted": (("MISCONF", "NOREPLICAS"), ()),
    "unreachable": (("CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "UNBLOCKED"), ()),
    "full": (("OOM",), (redis_errors.OutOfMemoryError,)),
    "forbidden": (("NOPERM",), (redis_errors.NoPermissionError, redis_errors.AuthenticationError)),
    "read_only": (("READONLY",), (redis_errors.ReadOnlyError,)),
    "refused": ((), (redis_errors.ResponseError,)),
}
"""How the server's messages begin, and the errors that redis-py makes of some of them."""
_ADVICE = {
    "wrong_type": "a key of the requests, the replies or the dead letters is no stream: rename the key or the setting",
    "forbidden": "the user may not log in, or lacks commands or keys: docs/operate.md lists what it needs",
    "refused": "a command is not known: Redis 6.2 or later, or Valkey, is needed",
}


def reason_of(error: BaseException) -> str:
    """The cause of an error of Redis, as the metric's label."""
    for reason, (codes, kinds) in _REASONS.items():
        if str(error).startswith(codes) or isinstance(error, kinds):
            return reason
    return "unreachable"


def connect(settings: RedisSettings) -> Any:
    """A client, which connects with its first command. Raises StartError for files and addresses of no use."""
    options: dict[str, Any] = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S, "protocol": 2}
    options["retry"] = Retry(NoBackoff(), 0)  # the caller decides
    tls, password = settings.tls, settings.user.password.get_secret_value()
    if tls.enabled:
        all_readable(tls, "redis.tls")
        files = {"ssl_ca_certs": tls.ca_file, "ssl_certfile": tls.cert_file, "ssl_keyfile": tls.key_file}
        options |= {"ssl": True, "ssl_exclude_verify_flags": [NOT_DEMANDED]}
        options |= {name: str(file) for name, file in files.items() if file is not None}
    all_readable(settings.user, "redis.user")
    if settings.user.password_file is not None:
        password = settings.user.password_file.read_text().strip()
    name = settings.user.username
    user: dict[str, Any] = {"username": name or None, "password": password} if name or password else {}
    addresses = split_servers(settings.servers)
    if settings.cluster:
        return RedisCluster(startup_nodes=[ClusterNode(*address) for address in addresses], **options, **user)
    if settings.sentinel:
        own = {**options, **user, "db": settings.client.database}
        sentinels: Any = Sentinel(addresses, sentinel_kwargs=options, **own)  # type: ignore[no-untyped-call]
        return sentinels.master_for(settings.sentinel)
    return Redis(host=addresses[0][0], port=addresses[0][1], db=settings.client.database, **options, **user)


async def disconnect(client: Any) -> None:
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for each in (client, *(manager.sentinels if manager is not None else ())):
        await each.aclose()


async def prepare_streams(settings: RedisSettings, timeout_s: float, *, create: bool = True) -> Sequence[str]:
    """Make sure that no key in use is of another type and, unless it is a check, that each stream has the group.

    Returns warnings. Raises StartError that says what to do.
    """
    client, loop = connect(settings), asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    try:
        while True:
            try:
                return await _prepare(client, settings, create=create)
            except TRANSIENT as error:
                advice = _ADVICE.get(reason_of(error), "it cannot be reached" if loop.time() > deadline_s else "")
                if advice:
                    raise StartError(f"redis {settings.servers}: {advice} ({error!r})") from error
            await asyncio.sleep(_RETRY_S)
    finally:
        await disconnect(client)


async def _prepare(client: Any, settings: RedisSettings, *, create: bool) -> list[str]:
    for stream in settings.streams:
        if create:
            await create_group(client, stream.name, settings.group_id)
        for key in (stream.name, settings.replies_of(stream), stream.name + DEAD_LETTER_SUFFIX):
            await client.xlen(key)
    try:
        kept = not settings.cluster and await client.info("persistence")
    except TRANSIENT:
        return []  # an ACL may not allow to look
    lost = kept and not kept.get("aof_enabled")
    return ["redis: appendonly is off: acknowledged entries are lost when the server ends"] if lost else []


async def create_group(client: Any, stream: str, group_id: str) -> None:
    """Let the group read the stream from its beginning; nothing changes if it reads it already."""
    try:
        await client.xgroup_create(stream, group_id, id="0", mkstream=True)
    except redis_errors.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise


async def _heeded(command: Awaitable[Any]) -> Any:
    """The result of a command, unless its task was cancelled meanwhile.

    redis-py sends by `asyncio.wait_for`, which in Python 3.11 forgets a cancellation when the sending has just ended.
    """
    try:
        return await command
    finally:
        if is_cancelled():
            raise asyncio.CancelledError


class Server:
    """The Redis of one source."""

    def __init__(self, client: Any, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.client = client
        self.count = partial(metrics.source_events.add, 1, REDIS)
        self._clock = clock
        self._loaded: dict[str, str] = {}
        self._trouble: dict[str, tuple[str, float]] = {}

    @property
    def healthy(self) -> bool:
        return all(self._clock() - since_s < _UNHEALTHY_S for _, since_s in self._trouble.values())

    async def evaluate(self, script: str, key: str, *arguments: bytes | str | float) -> Any:
        """Run a script, by its digest once Redis knows it. Raises any of TRANSIENT."""
        digest = self._loaded.get(script)
        if digest is not None:
            try:
                return await _heeded(self.client.evalsha(digest, 1, key, *arguments))
            except NoScriptError:  # SCRIPT FLUSH, a restart or another master
                self.count("scripts_flushed")
        found = await _heeded(self.client.eval(script, 1, key, *arguments))
        self._loaded[script] = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        return found

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together; returns each one's result, or its error."""
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command, **({"parse_justid": True} if command[0] == "XCLAIM" else {}))
        try:
            results: list[Any] = await _heeded(pipeline.execute(raise_on_error=False))
        except TRANSIENT as error:
            return [error] * len(commands)
        return results

    async def wait_for_entry(self, stream: str, last: bytes, timeout_s: float) -> None:
        """Return when the stream has an entry behind `last`, or after a time. Raises any of TRANSIENT."""
        await _heeded(self.client.xread({stream: last}, count=1, block=int(timeout_s * 1000)))

    def failed(self, doing: str, error: BaseException) -> str:
        reason = reason_of(error)
        self.count(reason)
        known, since_s = self._trouble.get(doing, ("", self._clock()))
        self._trouble[doing] = reason, since_s
        if known != reason:
            _LOG.error("Redis does not serve", extra={"doing": doing, "reason": reason, "error": str(error)})
        return reason

    def worked(self, doing: str) -> None:
        if self._trouble.pop(doing, None) is not None:
            _LOG.info("Redis serves again", extra={"doing": doing})
