"""One Redis for the tests of a folder; each test has keys of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.stack.redis import UNSYNCED, RedisServer
from tests.contract.aggregator.wings.redis.broker import RedisAsBroker


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that no test breaks."""
    with RedisServer(tmp_path_factory.mktemp("redis"), settings=UNSYNCED) as server:
        yield server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may break."""
    with RedisServer(tmp_path / "redis", settings=UNSYNCED) as server:
        yield server


@pytest_asyncio.fixture
async def broker(shared: RedisServer) -> AsyncGenerator[RedisAsBroker]:
    """Keys of the shared server."""
    made = RedisAsBroker(shared.address)
    yield made
    await made.close()
