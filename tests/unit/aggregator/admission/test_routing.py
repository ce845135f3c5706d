"""Requests find the model, the revision and the options they are served with, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.models import CALLS_WAIT_S, OTHER_TASK_S, REPLAYS_WAIT_S, Canary, Model, ServedTask
from aggregator.admission.routing import Routed, route_all
from aggregator.errors import Code
from aggregator.request.request import Request, Stage
from aggregator.scheduler.work_item import Task
from aggregator.sources.embedding import Embedding
from tests.support.fake_source import KAFKA
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.faked_pipeline import DESCRIPTION, FakedPipeline, new_engine
from tests.support.virtual_time import in_virtual_time, run


@in_virtual_time
async def test_an_unknown_model_is_not_found_and_an_alias_is() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        unknown = await faked.embed("1", model="nobody")
        alias = await faked.embed("1", model="alias")
        revision = await faked.embed("1", model_revision="r9")
    assert [unknown.code, alias.code, revision.code] == [Code.NOT_FOUND, Code.OK, Code.NOT_FOUND]


def routing(check: Callable[[FakedPipeline], None]) -> None:
    """A pipeline with one server, in which nothing runs."""

    async def prepared() -> None:
        engine = new_engine()
        faked = FakedPipeline(engine)
        faked.pipeline.models.join(engine, FakeTokenizer())
        check(faked)

    run(prepared())


def test_requests_are_grouped_by_who_serves_them_in_their_order() -> None:
    def check(faked: FakedPipeline) -> None:
        requests = [faked.request("1"), faked.request("2", source=KAFKA), faked.request("3", model="alias")]
        routed = route_all(requests, faked.pipeline.models, 0.0)
        [(served, (model, group))] = routed.groups.items()
        assert (model, group, routed.refused, routed.expired) == (faked.embeds, requests, [], 0)
        assert served is faked.embeds.revisions["r1"]

    routing(check)


def test_options_are_made_definite_for_each_request_as_it_asked() -> None:
    def check(faked: FakedPipeline) -> None:
        requests = [faked.request("1"), faked.request("2", dimensions=2), faked.request("3")]
        route_all(requests, faked.pipeline.models, 0.0)
        assert [request.options.dimensions for request in requests] == [4, 2, 4]

    routing(check)


def test_what_expires_on_arrival_or_at_this_very_moment_is_counted() -> None:
    def check(faked: FakedPipeline) -> None:
        requests = [faked.request("1", in_s=in_s) for in_s in (-5.0, -1.0, 0.0, 1.0)]
        now_s = requests[3].deadline_s - 1.0
        routed = route_all(requests, faked.pipeline.models, now_s)
        assert (routed.refused, routed.expired) == (requests[:3], 3)
        assert {request.code for request in requests[:3]} == {Code.DEADLINE_EXCEEDED}

    routing(check)


def test_who_gave_up_is_neither_routed_nor_told() -> None:
    def check(faked: FakedPipeline) -> None:
        gone = faked.request("1", in_s=-1.0)
        gone.stage = Stage.GIVEN_UP
        routed = route_all([gone], faked.pipeline.models, gone.deadline_s)
        assert (routed.refused, len(routed.groups)) == ([], 0)

    routing(check)


class Scores(Embedding):
    """Another task."""

    task = Task.SCORE


def test_a_task_that_a_model_does_not_do_is_refused_with_one_that_does() -> None:
    def check(faked: FakedPipeline) -> None:
        models = faked.pipeline.models
        first, second = faked.request("1"), faked.request("2")
        first.kind = second.kind = Scores()
        now_s = OTHER_TASK_S + 1.0
        for served in models.find("alias").model.tasks.values():
            served.served_since_s = 0.0 if served.task is Task.EMBED else served.served_since_s
        route_all([first], models, now_s)
        assert str(first.failure and first.failure.message).endswith("embeds and does not score: no model here scores")
        ranker = Model("ranker", (), Admission(AdmissionPolicy(100)))
        ranker.tasks[Task.SCORE].revisions["r"] = faked.embeds.revisions["r1"]
        models.tasks.append(ranker.tasks[Task.SCORE])
        route_all([second], models, now_s)
        assert str(second.failure and second.failure.message).endswith("embeds and does not score: use model ranker")

    routing(check)


def test_what_nobody_thought_of_harms_only_the_request_it_befell() -> None:
    def check(faked: FakedPipeline) -> None:
        record, call = faked.request("1", source=KAFKA, request_id="odd"), faked.request("2")
        choose = ServedTask.choose

        def chosen(served: ServedTask, revision: str, request_id: str, *more: Any) -> Any:
            assert request_id != "odd"
            return choose(served, revision, request_id, *more)

        with patch.object(ServedTask, "choose", chosen):
            routed = route_all([record, call], faked.pipeline.models, 0.0)
        assert (routed.refused, record.code) == ([record], Code.INTERNAL)
        assert [group for _, group in routed.groups.values()] == [[call]]

    routing(check)


@in_virtual_time
async def test_records_await_a_first_server_of_their_model_calls_for_a_minute() -> None:
    faked = FakedPipeline()
    faked.embeds.unavailable_since_s = 0.0
    record, early, late = faked.request("1", source=KAFKA), faked.request("2"), faked.request("3")
    assert not route_all([record, early], faked.pipeline.models, CALLS_WAIT_S - 0.1).refused
    routed = route_all([late], faked.pipeline.models, CALLS_WAIT_S)
    assert (routed.refused, late.code, len(routed.groups)) == ([late], Code.UNAVAILABLE, 0)
    assert list(faked.embeds.pending) == [record, early]


def on_trial(share: float, *revisions: str) -> tuple[FakedPipeline, list[str]]:
    """A pipeline whose model tries r2 with that share, these revisions having a server; who serves 2,000 requests."""
    faked = FakedPipeline()
    faked.model.canary = Canary("r2", share)
    for number, revision in enumerate(revisions):
        description = replace(DESCRIPTION, address=f"server-{number}:1", model_revision=revision)
        faked.pipeline.models.join(new_engine(description=description), FakeTokenizer())
    requests = [faked.request("1") for _ in range(2000)]
    routed = route_all(requests, faked.pipeline.models, 0.0)
    served = {
        request.request_id: revision.description.model_revision
        for revision, (_, group) in routed.groups.items()
        for request in group
    }
    return faked, [served[request.request_id] for request in requests]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@in_virtual_time
async def test_a_canary_serves_its_share_of_the_requests(share: float) -> None:
    _, served = on_trial(share, "r1", "r2", "r1")
    assert served.count("r2") == pytest.approx(share * len(served), abs=0.03 * len(served) * (0 < share < 1))


def test_a_request_that_returns_is_served_by_the_revision_that_it_had() -> None:
    canary = Canary("r2", 0.5)
    served = {name: canary.serves(name) for name in ("topic-0-1", "topic-0-2", "\ud800", "", *map(str, range(50)))}
    assert set(served.values()) == {True, False}
    assert all(canary.serves(name) is chosen for name, chosen in served.items())
    more = Canary("r2", 0.75)
    assert all(more.serves(name) for name, chosen in served.items() if chosen), "a larger share takes none away"


@pytest.mark.parametrize(("share", "revision"), [(1.0, "r1"), (0.0, "r2")])
@in_virtual_time
async def test_where_one_revision_has_no_server_the_other_serves_all(share: float, revision: str) -> None:
    _, served = on_trial(share, revision)
    assert set(served) == {revision}


@in_virtual_time
async def test_the_revision_with_most_servers_serves_what_those_on_trial_do_not() -> None:
    _, served = on_trial(0.0, "r0", "r2", "r2", "r1", "r1")
    assert set(served) == {"r1"}


@in_virtual_time
async def test_a_canary_whose_servers_are_gone_hands_its_requests_on() -> None:
    faked, served = on_trial(1.0, "r1", "r2")
    assert set(served) == {"r2"}
    (gone,) = faked.embeds.revisions["r2"].servers.values()
    faked.pipeline.models.leave(gone)
    request = faked.request("1")
    routed = route_all([request], faked.pipeline.models, 0.0)
    assert [each.description.model_revision for each in routed.groups] == ["r1"]


@in_virtual_time
async def test_a_pinned_revision_serves_whatever_is_on_trial() -> None:
    faked, _ = on_trial(1.0, "r1", "r2")
    routed = route_all([faked.request("1", model_revision="r1")], faked.pipeline.models, 0.0)
    assert [each.description.model_revision for each in routed.groups] == ["r1"]


def groups(routed: Routed) -> dict[str, list[Request]]:
    """By revision."""
    return {found.description.model_revision: group for found, (_, group) in routed.groups.items()}


def test_a_replay_goes_to_the_revision_that_answered() -> None:
    def check(faked: FakedPipeline) -> None:
        for number in (2, 3):
            newer = new_engine(replace(DESCRIPTION, address=f"server-{number}:1", model_revision="r2"))
            faked.pipeline.models.join(newer, FakeTokenizer())
        requests = [faked.request(text, source=KAFKA) for text in ("1", "2", "3")]
        requests[1].replay_revision, requests[2].replay_revision = "r1", "gone"
        faked.embeds.servers_changed(0.0)
        routed = route_all(requests, faked.pipeline.models, 0.0)
        assert groups(routed) == {"r2": [requests[0]], "r1": [requests[1]]}
        assert list(faked.embeds.pending) == [requests[2]]  # its revision may have servers that are not reached yet
        routed = route_all(requests, faked.pipeline.models, REPLAYS_WAIT_S)
        assert groups(routed) == {"r2": [requests[0], requests[2]], "r1": [requests[1]]}

    routing(check)
