"""What waits for a first server of its model expires in time, keeps its order, and stops the intake that brings it."""

from __future__ import annotations

import sys
from math import inf

from aggregator.admission.bounds import Admission, AdmissionPolicy
from aggregator.admission.models import Model
from aggregator.admission.pending import Pending
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Priority, Task
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.wire.message import parse
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import KAFKA, FakeSource


def request(text: str, deadline_s: float = inf, source: FakeSource = KAFKA) -> Request:
    """A request of one text."""
    message = pb.EmbedRequest(request_id=text, inputs=[pb.Input(text=text)])
    defaults = Defaults(source, "m", Priority.DEFAULT)
    return parse(EMBEDDING, message, defaults, object(), received_s=0.0, wall_s=0.0, deadline_s=deadline_s)


def test_deadlines_are_kept_earliest_first_and_the_rest_keeps_its_order() -> None:
    pending = Pending()
    for text, deadline_s in (("late", 9.0), ("never", inf), ("soon", 1.0), ("never too", inf), ("soon too", 2.0)):
        pending.append(request(text, deadline_s))
    assert pending.next_deadline_s == 1.0
    assert [one.request_id for one in pending.expire(2.0)] == ["soon", "soon too"]
    assert pending.next_deadline_s == 9.0
    assert [one.request_id for one in pending.take(lambda one: one.request_id != "late")] == ["never", "never too"]
    assert [one.request_id for one in pending] == ["late"]
    assert not pending.expire(8.0)


def test_tokens_are_those_of_what_is_pending_now() -> None:
    pending = Pending()
    pending.append(request("x" * 400, 1.0))
    pending.append(request("y" * 80))
    assert pending.tokens == 120
    pending.expire(1.0)
    assert pending.tokens == 20
    pending.take(lambda _: True)
    assert pending.tokens == 0


def test_a_model_is_full_for_every_class_once_pending_work_would_fill_it() -> None:
    model = Model("m", (), Admission(AdmissionPolicy(max_tokens=100)))
    pending = model.tasks[Task.EMBED].pending
    pending.append(request("x" * 399))
    assert model.full() == frozenset()
    pending.append(request("y"))
    assert model.full() == frozenset(Priority)
    pending.take(lambda _: True)
    assert model.full() == frozenset()


def test_one_that_nobody_awaits_is_taken_out_with_its_texts_and_deadline() -> None:
    pending = Pending()
    first, second = request("x" * 400, 1.0), request("y" * 80, 2.0)
    for each in (first, second):
        pending.append(each)
    first.inputs = ()
    pending.discard(first)
    pending.discard(first)
    assert (len(pending), pending.tokens, pending.next_deadline_s) == (1, 20, 2.0)
    assert pending.expire(3.0) == [second]


def test_those_that_went_leave_no_memory_behind() -> None:
    pending = Pending()
    gone: list[Request] = []
    for number in range(1000):
        each = request(str(number), 1e6)
        gone.append(each)
        pending.append(each)
        pending.discard(each)
    referred = [sys.getrefcount(each) for each in gone]
    assert sum(count > min(referred) for count in referred) <= 100
