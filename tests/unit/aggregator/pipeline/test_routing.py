"""Requests find the model, the revision and the options they are served with, or are refused."""

from __future__ import annotations

from aggregator.errors import Code
from tests.fakes.clock import run
from tests.fakes.world import SerialEngine, World, vectors


def test_a_prompt_goes_before_the_text_of_a_query() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            request = await world.embed("10", input_type="INPUT_TYPE_QUERY")
        assert vectors(request) == [[20.0, 4.0, 3.0, 4.0]]

    run(check())


def test_an_unknown_model_is_not_found_and_an_alias_is() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            unknown = await world.embed("1", model="nobody")
            alias = await world.embed("1", model="alias")
            revision = await world.embed("1", model_revision="r9")
        assert [unknown.code, alias.code, revision.code] == [Code.NOT_FOUND, Code.OK, Code.NOT_FOUND]

    run(check())


def test_dimensions_that_the_model_does_not_have_are_refused() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            refused = await world.embed("1", dimensions=3)
            shortened = await world.embed("1", dimensions=2)
        assert [refused.code, shortened.code] == [Code.INVALID_ARGUMENT, Code.OK]

    run(check())


def test_what_expired_on_arrival_never_reaches_an_engine() -> None:
    async def check() -> None:
        engine = SerialEngine()
        async with World(engine).started() as world:
            request = await world.embed("1", in_s=-0.001)
        assert request.code is Code.DEADLINE_EXCEEDED
        assert not engine.batches

    run(check())
