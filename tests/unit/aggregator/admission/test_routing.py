"""Requests find the model, the revision and the options they are served with, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from typing_extensions import override

from aggregator.admission.models import Canary
from aggregator.admission.routing import route_all
from aggregator.errors import Code, InvalidRequest
from aggregator.request import Request
from tests.fakes.clock import run
from tests.fakes.sources import KAFKA, FakeSource
from tests.fakes.tokenizers import FakeTokenizer
from tests.fakes.world import DESCRIPTION, World, new_engine, vectors


def test_a_prompt_goes_before_the_text_of_a_query() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            request = await world.embed("10", input_type="INPUT_TYPE_QUERY")
        assert vectors(request) == [[FakeTokenizer.ids("query 10").sum(), 4.0, 3.0, 4.0]]

    run(check())


def test_an_unknown_model_is_not_found_and_an_alias_is() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            unknown = await world.embed("1", model="nobody")
            alias = await world.embed("1", model="alias")
            revision = await world.embed("1", model_revision="r9")
        assert [unknown.code, alias.code, revision.code] == [Code.NOT_FOUND, Code.OK, Code.NOT_FOUND]

    run(check())


def test_dimensions_that_the_model_does_not_have_are_refused() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            refused = await world.embed("1", dimensions=3)
            shortened = await world.embed("1", dimensions=2)
        assert [refused.code, shortened.code] == [Code.INVALID_ARGUMENT, Code.OK]

    run(check())


def test_what_expired_on_arrival_never_reaches_an_engine() -> None:
    async def check() -> None:
        engine = new_engine()
        async with World(engine).started() as world:
            request = await world.embed("1", in_s=-0.001)
        assert request.code is Code.DEADLINE_EXCEEDED
        assert not engine.batches

    run(check())


class Accepting(FakeSource):
    """Like Kafka; notes what it accepts, and refuses what asks for 2 dimensions."""

    def __init__(self) -> None:
        super().__init__("kafka", refusable=False, replayed=True)

    @override
    def accept(self, request: Request) -> None:
        self.replied.append(request)
        if request.options.dimensions == 2:
            raise InvalidRequest("its reply would not fit")


def routing(check: Callable[[World, Accepting], None]) -> None:
    """A world with one server and a Kafka side that accepts, in which nothing runs."""

    async def prepared() -> None:
        engine = new_engine()
        world = World(engine)
        world.pipeline.models.join(engine, FakeTokenizer())
        world.kafka = Accepting()
        check(world, world.kafka)

    run(prepared())


def test_requests_are_grouped_by_who_serves_them_in_their_order() -> None:
    def check(world: World, _: Accepting) -> None:
        requests = [world.request("1"), world.request("2", source=KAFKA), world.request("3", model="alias")]
        routed = route_all(requests, world.pipeline.models, 0.0)
        [(served, (model, group))] = routed.groups.items()
        assert (model, group, routed.refused, routed.expired) == (world.model, requests, [], 0)
        assert served is world.model.revisions["r1"]
        assert world.kafka.replied == [requests[1]]

    routing(check)


def test_options_are_made_definite_for_each_request_as_it_asked() -> None:
    def check(world: World, _: Accepting) -> None:
        requests = [world.request("1"), world.request("2", dimensions=2), world.request("3")]
        route_all(requests, world.pipeline.models, 0.0)
        assert [request.options.dimensions for request in requests] == [4, 2, 4]

    routing(check)


def test_what_expired_on_arrival_is_counted_and_so_is_a_deadline_of_this_very_moment() -> None:
    def check(world: World, _: Accepting) -> None:
        requests = [world.request("1", in_s=in_s) for in_s in (-5.0, -1.0, 0.0, 1.0)]
        now_s = requests[3].deadline_s - 1.0
        routed = route_all(requests, world.pipeline.models, now_s)
        assert (routed.refused, routed.expired) == (requests[:3], 3)
        assert {request.code for request in requests[:3]} == {Code.DEADLINE_EXCEEDED}

    routing(check)


def test_a_request_refused_by_its_topics_bounds_is_answered_and_the_next_is_served() -> None:
    def check(world: World, _: Accepting) -> None:
        refused, served = (world.request("1", source=KAFKA, dimensions=size) for size in (2, 4))
        routed = route_all([refused, served], world.pipeline.models, 0.0)
        assert (routed.refused, refused.code) == ([refused], Code.INVALID_ARGUMENT)
        assert [group for _, group in routed.groups.values()] == [[served]]

    routing(check)


def test_each_source_is_asked_about_its_own_requests() -> None:
    def check(world: World, kafka: Accepting) -> None:
        route_all([world.request("1")], world.pipeline.models, 0.0)
        assert kafka.replied == []

    routing(check)


def test_who_gave_up_is_neither_routed_nor_told() -> None:
    def check(world: World, _: Accepting) -> None:
        gone = world.request("1", in_s=-1.0)
        gone.given_up = True
        routed = route_all([gone], world.pipeline.models, gone.deadline_s)
        assert (routed.refused, len(routed.groups)) == ([], 0)

    routing(check)


def test_what_nobody_thought_of_harms_only_the_request_it_befell() -> None:
    class Broken(Accepting):
        @override
        def accept(self, request: Request) -> None:
            raise ZeroDivisionError

    def check(world: World, _: Accepting) -> None:
        world.kafka = Broken()
        record, call = world.request("1", source=KAFKA), world.request("2")
        routed = route_all([record, call], world.pipeline.models, 0.0)
        assert (routed.refused, record.code) == ([record], Code.INTERNAL)
        assert [group for _, group in routed.groups.values()] == [[call]]

    routing(check)


def test_records_wait_for_a_first_server_of_their_model_and_calls_are_told() -> None:
    async def check() -> None:
        world = World()
        record, call = world.request("1", source=KAFKA), world.request("2")
        routed = route_all([record, call], world.pipeline.models, 0.0)
        assert (routed.refused, call.code, len(routed.groups)) == ([call], Code.UNAVAILABLE, 0)
        assert list(world.model.pending) == [record]

    run(check())


def on_trial(share: float, *revisions: str) -> tuple[World, list[str]]:
    """A world whose model tries r2 with that share, these revisions having a server; who serves 2,000 requests."""
    world = World()
    world.model.canary = Canary("r2", share)
    for number, revision in enumerate(revisions):
        description = replace(DESCRIPTION, address=f"server-{number}:1", model_revision=revision)
        world.pipeline.models.join(new_engine(description=description), FakeTokenizer())
    requests = [world.request("1") for _ in range(2000)]
    routed = route_all(requests, world.pipeline.models, 0.0)
    served = {
        request.request_id: revision.description.model_revision
        for revision, (_, group) in routed.groups.items()
        for request in group
    }
    return world, [served[request.request_id] for request in requests]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_canary_serves_its_share_of_the_requests(share: float) -> None:
    async def check() -> None:
        _, served = on_trial(share, "r1", "r2", "r1")
        assert served.count("r2") == pytest.approx(share * len(served), abs=0.03 * len(served) * (0 < share < 1))

    run(check())


def test_a_request_that_comes_again_is_served_by_the_same_revision_whatever_came_between() -> None:
    canary = Canary("r2", 0.5)
    served = {name: canary.serves(name) for name in ("topic-0-1", "topic-0-2", "\ud800", "", *map(str, range(50)))}
    assert set(served.values()) == {True, False}
    assert all(canary.serves(name) is chosen for name, chosen in served.items())
    more = Canary("r2", 0.75)
    assert all(more.serves(name) for name, chosen in served.items() if chosen), "a larger share takes none away"


@pytest.mark.parametrize(("share", "revision"), [(1.0, "r1"), (0.0, "r2")])
def test_where_one_revision_has_no_server_the_other_serves_all(share: float, revision: str) -> None:
    async def check() -> None:
        _, served = on_trial(share, revision)
        assert set(served) == {revision}

    run(check())


def test_of_the_revisions_that_are_not_on_trial_the_one_with_most_servers_serves_the_rest() -> None:
    async def check() -> None:
        _, served = on_trial(0.0, "r0", "r2", "r2", "r1", "r1")
        assert set(served) == {"r1"}

    run(check())


def test_a_canary_whose_servers_are_gone_hands_its_requests_on() -> None:
    async def check() -> None:
        world, served = on_trial(1.0, "r1", "r2")
        assert set(served) == {"r2"}
        (gone,) = world.model.revisions["r2"].engines.values()
        world.pipeline.models.leave(gone)
        request = world.request("1")
        routed = route_all([request], world.pipeline.models, 0.0)
        assert [each.description.model_revision for each in routed.groups] == ["r1"]

    run(check())


def test_a_pinned_revision_serves_whatever_is_on_trial() -> None:
    async def check() -> None:
        world, _ = on_trial(1.0, "r1", "r2")
        routed = route_all([world.request("1", model_revision="r1")], world.pipeline.models, 0.0)
        assert [each.description.model_revision for each in routed.groups] == ["r1"]

    run(check())
