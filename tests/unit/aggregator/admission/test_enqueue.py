"""Inputs are counted, held to the model's limits and queued, each under its own request."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.enqueue import enqueue
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.quotas import Quotas
from aggregator.errors import Code
from aggregator.model_server import Details
from aggregator.request.request import Failure, Options, Request, Stage
from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.work_item import Priority
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import KAFKA, any_request
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.faked_pipeline import DESCRIPTION, FakeCounting
from tests.support.queries import packed

NOW_S = 200.0
FULL = Failure(Code.INVALID_ARGUMENT, "it had its outcome")


class Bare(FakeTokenizer):
    """Puts nothing around a text."""

    @staticmethod
    @override
    def ids(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return FakeTokenizer.ids(text)[1:-1]


class Intake:
    """One revision without a server: what is queued stays there."""

    def __init__(
        self,
        *,
        quotas: Quotas | None = None,
        most: int = 1000,
        details: Details | None = None,
        tokenizer: FakeTokenizer | None = None,
    ) -> None:
        self.counting = FakeCounting(tokenizer or FakeTokenizer())
        description = replace(DESCRIPTION, query_prompt="9 ", document_prompt="8 8 ", details=details or Details())
        self.model_revision = ModelRevision(description, FakeTokenizer(), self.counting, DispatchPolicy())
        self.admission = Admission(AdmissionPolicy(most))
        self.limits = AdmissionLimits(quotas, jitter=lambda: 0.0)
        self.queue = self.model_revision.dispatcher.queue

    def put(self, *requests: Request) -> list[Request]:
        """Enqueue them; returns those that are completed already."""
        return asyncio.run(enqueue(self.model_revision, self.admission, requests, self.limits, lambda: NOW_S))

    def queued(self) -> list[bytes]:
        return [item.token_ids for item in self.queue.items()]


def request(*inputs: str | bytes, options: Options | None = None, in_s: float = inf, **changes: Any) -> Request:
    asked = options or Options(dimensions=4)
    return any_request(*inputs, options=asked, received_s=100.0, deadline_s=NOW_S + in_s, **changes)


def failures(of: Request) -> list[Code | None]:
    return [outcome.code if isinstance(outcome, Failure) else None for outcome in of.outcomes]


def test_texts_are_counted_and_ids_taken_as_they_are_each_in_its_place() -> None:
    intake = Intake()
    one = request("10 11", packed(1, 5, 2), "12")
    assert intake.put(one) == []
    assert intake.queued() == [packed(1, 10, 11, 2), packed(1, 5, 2), packed(1, 12, 2)]
    assert intake.counting.calls == [["10 11", "12"]]
    assert [(query.index, query.request) for query in one.queries] == [(0, one), (1, one), (2, one)]
    assert [query.item.token_count for query in one.queries if query.item] == [4, 3, 3]
    assert (one.token_count, one.stage, intake.admission.total) == (10, Stage.ADMITTED, 10)
    assert one.held is not None
    assert (one.held.queue, one.held.queued_s) == (intake.queue, NOW_S)


def test_an_id_that_is_not_the_models_fails_its_input_alone() -> None:
    intake = Intake()
    one = request(packed(1, 5, 2), "10", packed(1, 100_000, 2), packed(1, 99_999, 2))
    intake.put(one)
    assert intake.queued() == [packed(1, 5, 2), packed(1, 10, 2), packed(1, 99_999, 2)]
    failure = Failure(Code.INVALID_ARGUMENT, "a token id is not below 100000, the size of the vocabulary")
    assert one.outcomes == [None, None, failure, None]


def test_an_input_without_tokens_is_refused() -> None:
    intake = Intake(tokenizer=Bare())
    one = request("", "10")
    intake.put(one)
    assert intake.queued() == [packed(10)]
    assert one.outcomes == [Failure(Code.INVALID_ARGUMENT, "the input has no tokens: leave it out"), None]


def test_a_limit_of_the_request_without_truncation_is_named() -> None:
    intake = Intake()
    one = request("3 4 5 6 7", options=Options(dimensions=4, truncate=pb.TRUNCATE_NONE, truncate_to=4))
    assert intake.put(one) == [one]
    message = "7 tokens: truncate_to leaves 4, and truncate cuts none; set truncate, or send less"
    assert one.failure == Failure(Code.OUT_OF_RANGE, message, field="truncate_to")


def test_several_requests_are_counted_in_one_call_and_each_gets_its_own() -> None:
    intake = Intake()
    first, second = request("10"), request("20 21", source=KAFKA, in_s=5.0)
    intake.put(first, second)
    assert intake.counting.calls == [["10", "20 21"]]
    assert (first.token_count, second.token_count) == (3, 4)
    assert second.queries == ()  # nobody can go away who came by Kafka
    assert intake.queue.next_deadline_s() == NOW_S + 5.0
    waiting = [query for item in intake.queue.items() for query in item.waiters]
    assert {(query.request, query.enqueued_s, query.priority) for query in waiting} == {
        (one, 100.0, Priority.DEFAULT) for one in (first, second)
    }


@pytest.mark.parametrize(
    ("input_type", "counted"),
    [
        (pb.INPUT_TYPE_UNSPECIFIED, packed(1, 10, 2)),
        (pb.INPUT_TYPE_QUERY, packed(1, 9, 10, 2)),
        (pb.INPUT_TYPE_DOCUMENT, packed(1, 8, 8, 10, 2)),
    ],
)
def test_the_prompt_of_its_type_goes_before_a_text_and_never_before_ids(input_type: int, counted: bytes) -> None:
    intake = Intake()
    intake.put(request("10", packed(7), options=Options(dimensions=4, input_type=input_type)))
    assert intake.queued() == [counted, packed(7)]


@pytest.mark.parametrize(
    ("truncate", "kept"),
    [(pb.TRUNCATE_END, [*range(31), 39]), (pb.TRUNCATE_START, [0, *range(9, 40)]), (pb.TRUNCATE_NONE, None)],
)
def test_ids_beyond_the_models_limit_are_cut_at_the_asked_end_or_refused(truncate: int, kept: list[int] | None) -> None:
    intake = Intake()
    one = request(packed(*range(40)), options=Options(dimensions=4, truncate=truncate))
    completed = intake.put(one)
    if kept is not None:
        assert (completed, intake.queued(), one.token_count) == ([], [packed(*kept)], 32)
    else:
        assert (completed, intake.queued(), failures(one)) == ([one], [], [Code.OUT_OF_RANGE])
        assert one.failure is not None
        remedy = "send less, or set truncate to TRUNCATE_END or TRUNCATE_START"
        assert one.failure.message == f"40 tokens: test-model takes 32 tokens; {remedy}"


def test_an_input_as_long_as_the_model_takes_is_left_whole() -> None:
    intake = Intake()
    intake.put(request(packed(*range(32)), options=Options(dimensions=4, truncate=pb.TRUNCATE_NONE)))
    assert intake.queued() == [packed(*range(32))]


def test_what_broke_the_engine_before_is_refused_but_not_its_neighbours() -> None:
    intake = Intake()
    poison = packed(1, 66, 2)
    retries = intake.model_revision.dispatcher.retries
    retries.quarantine(poison, 0.0)
    one = request("66", "10", poison)
    assert intake.put(one) == []
    assert failures(one) == [Code.INTERNAL, None, Code.INTERNAL]
    assert (intake.queued(), one.token_count) == ([packed(1, 10, 2)], 3)


def test_a_redrive_ends_the_quarantine_of_its_inputs_for_everybody() -> None:
    intake = Intake()
    poison = packed(1, 66, 2)
    intake.model_revision.dispatcher.retries.quarantine(poison, 0.0)
    redriven = request(poison)
    redriven.redriven = True
    assert intake.put(redriven, request(poison)) == []
    assert intake.queued() == [poison]


def test_inputs_that_had_their_outcome_are_neither_counted_nor_queued() -> None:
    intake = Intake()
    one = request("10", "20", "30")
    one.complete_input(1, FULL)
    intake.put(one)
    assert intake.counting.calls == [["10", "30"]]
    assert intake.queued() == [packed(1, 10, 2), packed(1, 30, 2)]
    assert [query.index for query in one.queries] == [0, 2]


def test_an_emptied_request_is_completed_and_one_given_up_is_not_told() -> None:
    intake = Intake()
    refused, gone = request("5 " * 40), request("5 " * 40)
    gone.stage = Stage.GIVEN_UP
    assert intake.put(refused, gone, request("10")) == [refused]
    assert intake.queued() == [packed(1, 10, 2)]


def test_a_call_that_finds_no_room_is_refused_and_takes_none() -> None:
    intake = Intake(most=10)
    first, second = request("1 1 1 1 1 1"), request("2 2 2 2 2 2")
    assert intake.put(first, second) == [second]
    assert failures(second) == [Code.RESOURCE_EXHAUSTED]
    assert (intake.admission.total, second.held, second.stage) == (8, None, Stage.RECEIVED)
