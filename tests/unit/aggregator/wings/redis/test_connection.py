"""What a client of Redis does to the tasks that use it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from aggregator.observability.metrics import Metrics
from aggregator.wings.redis.connection import Server, connect
from aggregator.wings.redis.settings import RedisSettings
from k8s.pod.metrics_buffer import MetricsBuffer

FOR_EVER_S = 3600.0


class Forgetful:
    """A client whose every command takes until its task is cancelled, and then ends as if it was not."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    async def execute(self, *_: object, **__: object) -> list[Any]:
        self.waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(FOR_EVER_S)
        return []

    xread = eval = execute

    def pipeline(self, *, transaction: bool) -> Forgetful:
        del transaction
        return self


@pytest.mark.parametrize(
    "command",
    [
        lambda server: server.send([]),
        lambda server: server.evaluate("return 1", "key"),
        lambda server: server.wait_for_entry("requests", b"0", 1.0),
    ],
)
async def test_a_cancellation_that_the_client_forgets_still_ends_its_task(
    command: Callable[[Server], Awaitable[Any]],
) -> None:
    client = Forgetful()
    server = Server(client, Metrics(MetricsBuffer()), lambda: 0.0)

    async def work() -> None:
        await command(server)
        await asyncio.sleep(FOR_EVER_S)

    working = asyncio.create_task(work())
    await client.waits.wait()
    working.cancel()
    async with asyncio.timeout(5.0):
        await asyncio.wait([working])
    assert working.cancelled()


def test_a_user_without_a_password_is_the_one_who_logs_in() -> None:
    made = connect(RedisSettings.model_validate({"user": {"username": "reader"}}))
    assert made.connection_pool.connection_kwargs["username"] == "reader"


def test_authorities_of_redis_may_lack_extensions() -> None:
    made = connect(RedisSettings.model_validate({"tls": {"enabled": True}}))
    assert ssl.VERIFY_X509_STRICT in made.connection_pool.connection_kwargs["ssl_exclude_verify_flags"]
