"""A request as every intake sees it: one set of rules, one outcome for each input, and nothing kept after it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from typing_extensions import override

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.routing import unroute
from aggregator.errors import Code, InvalidRequest
from aggregator.pipeline.completion import account
from aggregator.request.request import MAX_TENANT_CHARACTERS, Defaults, Failure, Held, Options, Request
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.scheduler.budget import BudgetController, ServiceLevel, StepLimits
from aggregator.scheduler.queue import QueuePolicy, TokenQueue
from aggregator.scheduler.work_item import Priority
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.wire.decode import decode_embed
from aggregator.sources.wire.message import parse
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import GRPC
from tests.support.queries import query

ORIGIN = object()
DEFAULTS = Defaults(GRPC, "usual", Priority.DEFAULT, max_inputs=3)
FIRST, SECOND = Failure(Code.INVALID_ARGUMENT, "first"), Failure(Code.INTERNAL, "second")


def message(*inputs: str | list[int], **fields: Any) -> pb.EmbedRequest:
    made = [
        pb.Input(text=each) if isinstance(each, str) else pb.Input(token_ids=pb.TokenIds(ids=each)) for each in inputs
    ]
    return pb.EmbedRequest(inputs=made, **fields)


def parsed(*inputs: str | list[int], defaults: Defaults = DEFAULTS, deadline_s: float = inf, **fields: Any) -> Request:
    return parse(
        EMBEDDING, message(*inputs, **fields), defaults, ORIGIN, received_s=50.0, wall_s=1000.0, deadline_s=deadline_s
    )


def vector(done_s: float = 0.0, carried_s: float = 0.0) -> Vector:
    batch = CompletedBatch("b", "m", "r", 0, np.ones((1, 2), np.float32), 0.0, 0.0, carried_s, done_s)
    return Vector(batch, 0, 3, 0.0)


def test_what_a_request_does_not_say_its_intake_says() -> None:
    request = parsed("a")
    assert (request.model, request.model_revision, request.priority, request.tenant) == (
        "usual",
        "",
        Priority.DEFAULT,
        "",
    )
    assert (request.source, request.received_s, request.deadline_s) == (GRPC, 50.0, inf)
    assert (request.origin, request.outcomes, request.remaining, request.failed) == (ORIGIN, (None,), 1, False)
    assert request.options == Options(0, pb.ENCODING_FLOAT32, None, pb.TRUNCATE_NONE, pb.INPUT_TYPE_UNSPECIFIED)
    assert len(request.request_id) == 32
    assert request.request_id != parsed("a").request_id


def test_what_a_request_says_holds() -> None:
    request = parsed(
        "a",
        request_id="q",
        model="m",
        model_revision="r",
        priority=pb.PRIORITY_INTERACTIVE,
        tenant="t",
        dimensions=64,
        encoding=pb.ENCODING_INT8,
        normalize=False,
        truncate=pb.TRUNCATE_START,
        input_type=pb.INPUT_TYPE_QUERY,
    )
    assert (request.request_id, request.model, request.model_revision) == ("q", "m", "r")
    assert (request.priority, request.tenant) == (Priority.INTERACTIVE, "t")
    assert request.options == Options(64, pb.ENCODING_INT8, False, pb.TRUNCATE_START, pb.INPUT_TYPE_QUERY)
    assert parsed("a", normalize=True).options.normalize is True
    assert parsed("a", priority=pb.PRIORITY_BACKGROUND).priority is Priority.BACKGROUND


@pytest.mark.parametrize(
    ("trusts", "own", "claimed", "tenant"),
    [(True, "", "t", "t"), (True, "own", "", "own"), (True, "own", "t", "t"), (False, "own", "t", "own")],
)
def test_a_tenant_is_who_the_request_says_where_callers_are_trusted(
    own: str, claimed: str, tenant: str, *, trusts: bool
) -> None:
    defaults = Defaults(GRPC, "usual", Priority.DEFAULT, own, trusts_tenant=trusts)
    assert parsed("a", defaults=defaults, tenant=claimed).tenant == tenant


def test_texts_and_token_ids_stand_side_by_side_in_their_order() -> None:
    request = parsed("a", [1, 2, 2**31 - 1], "c")
    assert list(request.inputs) == ["a", struct.pack("<3i", 1, 2, 2**31 - 1), "c"]
    assert (request.remaining, request.failed, request.code) == (3, False, Code.OK)


def test_an_input_at_fault_fails_alone() -> None:
    request = parsed("", "b", [7, 2**31])
    assert request.outcomes == [
        Failure(Code.INVALID_ARGUMENT, "the input is empty: send a text, or leave it out"),
        None,
        Failure(Code.INVALID_ARGUMENT, "a token id does not fit 31 bits"),
    ]
    assert (list(request.inputs), request.remaining, request.failed) == ([b"", "b", b""], 1, True)


@pytest.mark.parametrize("count", [16_384, 16_385, 40_000, 65_536])
def test_many_token_ids_are_packed_in_their_order(count: int) -> None:
    ids = list(range(count))
    assert list(parsed(ids).inputs) == [struct.pack(f"<{count}i", *ids)]
    for place in (0, count // 2, count - 1):
        bad = parsed([*ids[:place], 2**31, *ids[place + 1 :]])
        assert (bad.code, list(bad.inputs)) == (Code.INVALID_ARGUMENT, [b""])


def test_an_empty_request_and_one_of_too_many_inputs_are_refused() -> None:
    assert len(parsed("a", "b", "c").inputs) == 3
    with pytest.raises(InvalidRequest, match="4 inputs: at most 3 are taken"):
        parsed("a", "b", "c", "d")
    with pytest.raises(InvalidRequest, match="0 inputs: at least one is needed"):
        parsed()


@pytest.mark.parametrize(("name", "value"), [("encoding", 77), ("truncate", 78), ("input_type", 79), ("priority", 80)])
def test_a_choice_that_there_is_not_is_refused_by_its_name(name: str, value: int) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name} {value} is not known: use one of "):
        parse(EMBEDDING, message("a", **{name: value}), DEFAULTS, ORIGIN, received_s=0.0, wall_s=0.0)


def test_a_tenant_s_name_is_bounded_where_it_counts() -> None:
    name = "t" * MAX_TENANT_CHARACTERS
    assert parsed("a", tenant=name).tenant == name
    with pytest.raises(InvalidRequest, match="tenant has 257 characters: a tenant's name has at most 256") as refused:
        parsed("a", tenant=f"{name}t")
    assert refused.value.field == "tenant"
    authenticated = replace(DEFAULTS, tenant="team-a", trusts_tenant=False)
    assert parsed("a", tenant=f"{name}t", defaults=authenticated).tenant == "team-a"


@pytest.mark.parametrize(("outside_s", "held_s"), [(inf, 52.75), (52.0, 52.0), (60.0, 52.75)])
def test_the_earlier_of_the_messages_deadline_and_the_callers_holds(outside_s: float, held_s: float) -> None:
    expires = Timestamp(seconds=1002, nanos=750_000_000)
    assert parsed("a", expire_time=expires, deadline_s=outside_s).deadline_s == pytest.approx(held_s)


def test_bytes_are_a_message_or_are_said_to_be_none() -> None:
    one = message("a", request_id="q")
    assert decode_embed(one.SerializeToString(), 1) == one
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        decode_embed(b"\xff", 1)
    with pytest.raises(InvalidRequest, match="more than 9 inputs"):
        decode_embed(b"\x22\x00" * 20_000, 9)


def test_the_last_input_that_completes_completes_the_request() -> None:
    request = parsed("a", "b")
    assert request.complete_input(1, SECOND) is False
    assert (request.failed, request.remaining) == (True, 1)
    assert request.complete_input(0, vector()) is True
    assert (request.failed, request.remaining, request.code, request.failure) == (True, 0, Code.INTERNAL, SECOND)


def test_an_input_cannot_complete_twice() -> None:
    request = parsed("a", "b")
    request.complete_input(0, FIRST)
    with pytest.raises(AssertionError, match="This is a bug"):
        request.complete_input(0, SECOND)


def test_a_request_that_fails_keeps_what_its_inputs_have_and_fails_once() -> None:
    request = parsed("a", "b", "c")
    found = vector()
    request.complete_input(1, found)
    assert request.fail(FIRST) is True
    assert (request.outcomes, request.remaining, request.failed) == ([FIRST, found, FIRST], 0, True)
    assert request.fail(SECOND) is False
    assert request.outcomes == [FIRST, found, FIRST]


def test_an_answer_that_cannot_be_given_is_overruled_whole() -> None:
    request = parsed("a", "b")
    request.complete_input(0, vector())
    request.complete_input(1, vector())
    request.overrule(FIRST)
    assert (request.outcomes, request.failed, request.code) == ([FIRST, FIRST], True, FIRST.code)


def test_who_begins_anew_keeps_failures_but_no_vectors_or_decisions() -> None:
    request = parsed("a", "b", "c")
    asked = request.options
    request.options = Options(dimensions=384, asked=asked)
    request.complete_input(0, vector())
    request.complete_input(1, FIRST)
    unroute(request)
    assert (request.outcomes, request.remaining, request.options) == ([None, FIRST, None], 2, asked)
    unroute(request)
    assert request.options is asked


class HeardLevel(ServiceLevel):
    """Keeps the latency and the overhead of each answer."""

    def __init__(self) -> None:
        self.goal_s = 100.0
        self.heard: list[tuple[float, float]] = []

    @property
    @override
    def p99_s(self) -> float:
        return max((latency_s for latency_s, _ in self.heard), default=0.0)

    @override
    def answered(self, latency_s: float, overhead_s: float) -> None:
        self.heard.append((latency_s, overhead_s))

    @override
    def controller(self, limits: StepLimits, step_time_s: Callable[[int], float]) -> BudgetController:
        raise NotImplementedError


def held(slo: ServiceLevel | None = None) -> tuple[Held, Admission]:
    queue = TokenQueue(QueuePolicy())
    admission = Admission(AdmissionPolicy(1000))
    return Held(admission, queue, slo, 51.0), admission


def test_what_is_held_is_given_back_once() -> None:
    where, admission = held()
    request = parsed("a", tenant="t")
    request.hold(where, 12)
    request.queries = [query()]
    assert (admission.total, request.token_count, request.held, admission.holds_calls) == (12, 12, where, True)
    for _ in range(2):
        request.release()
        assert (admission.total, request.held, list(request.queries), admission.holds_calls) == (0, None, [], False)


def test_an_answers_overhead_is_all_but_its_waiting_and_its_step() -> None:
    """Received at 50 s, queued at 51, carried for 0.5, done at 90, completed at 92: 39 s of waiting are no overhead."""
    slo = HeardLevel()
    where, _ = held(slo)
    request = parsed("a", "b")
    request.hold(where, 12)
    request.complete_input(0, vector(done_s=60.0, carried_s=9.0))
    request.complete_input(1, vector(done_s=90.0, carried_s=0.5))
    account(request, 92.0)
    assert slo.heard == [(42.0, 1.0 + 0.5 + 2.0)]


def test_neither_a_failure_nor_what_was_never_held_counts_as_an_answer() -> None:
    slo = HeardLevel()
    where, _ = held(slo)
    failed, never = parsed("a"), parsed("b")
    failed.hold(where, 12)
    failed.fail(FIRST)
    account(failed, 92.0)
    never.complete_input(0, vector())
    account(never, 92.0)
    assert not slo.heard


@pytest.mark.parametrize(
    "given", [pb.Input(text="a" * 10**6), pb.Input(chunks=pb.Chunks(texts=["a" * 10**6, "b"]))], ids=["text", "chunks"]
)
def test_every_text_of_a_request_counts_wherever_it_is(given: pb.Input) -> None:
    request = parse(EMBEDDING, pb.EmbedRequest(inputs=[given]), DEFAULTS, ORIGIN, received_s=0.0, wall_s=0.0)
    assert 10**6 <= request.text_bytes < 10**6 + 1000
