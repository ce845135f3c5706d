"""A call takes the way that docs/architecture.md tells, over real gRPC and HTTP."""

from __future__ import annotations

from tests.integration.frontdoor.test_http import embed, http_door
from tests.support.architecture_page import entered, listed
from tests.support.listening import ask, listening


async def test_a_call_takes_the_way_that_is_told() -> None:
    files = listed("A call's way, file by file")
    async with listening() as door:
        await door.stub.Embed(ask("rain"))
        with entered(files) as found:
            await door.stub.Embed(ask("snow"))
    assert found == set(files)


async def test_a_call_over_http_takes_the_way_that_is_told() -> None:
    files = listed("A call's way over HTTP, file by file")
    async with http_door() as (_, session):
        with entered(files) as found:
            await embed(session, {"input": "snow"})
            await embed(session, {"input": []})
    assert found == set(files)
