"""A call takes the way that docs/architecture.md tells, over real gRPC."""

from __future__ import annotations

from tests.fakes.way import entered, listed
from tests.integration.frontdoor.door import ask, front_door


async def test_a_call_takes_the_way_that_is_told() -> None:
    files = listed("A call's way, file by file")
    async with front_door() as door:
        await door.stub.Embed(ask("rain"))
        with entered(files) as found:
            await door.stub.Embed(ask("snow"))
    assert found == set(files)
