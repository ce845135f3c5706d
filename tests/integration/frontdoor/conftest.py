"""A front door that several tests of a file call: each of them asks for something else, and leaves it as it was."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest_asyncio

from tests.integration.frontdoor.test_http import OpenDoor, http_door


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_door() -> AsyncGenerator[OpenDoor]:
    """Over a quick engine, by gRPC and over HTTP, with a client of the latter; for tests on the module's loop."""
    async with http_door() as opened:
        yield opened
