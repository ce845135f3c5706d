"""What is due at a moment, for which reason, and what becomes of a batch that comes back."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy, Due
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import Replica, SendReason, StepReport
from aggregator.scheduler.replica_choice import ENOUGH
from aggregator.scheduler.work_item import Priority, WorkItem
from tests.fakes.queries import Filler
from tests.fakes.replicas import CURVE, POLICY, replica

NOW_S = 5.0
ALONE = DispatchPolicy(queue=QueuePolicy(max_wait_s=(20.0, 20.0, 20.0)), paced=False)


class Desk:
    """A dispatcher over replicas of 100 tokens, of which the same number take 14 ms."""

    def __init__(
        self, *names: str, policy: DispatchPolicy = ALONE, warm: bool = False, token_budget: int = 100
    ) -> None:
        self.dispatcher = Dispatcher("m", policy)
        for name in names:
            self.dispatcher.replicas[name] = replica(name, warm=warm, token_budget=token_budget)
        self.put = Filler(self.dispatcher.queue)

    def due(self, now_s: float = NOW_S, *, max_items: int = 1000, draining: bool = False) -> Due:
        return self.dispatcher.due(now_s, max_items=max_items, draining=draining)

    def batch(self, now_s: float = NOW_S) -> Batch:
        [batch] = self.due(now_s).batches
        return batch

    def nothing(self, now_s: float = NOW_S) -> Due:
        due = self.due(now_s)
        assert not due.batches
        return due

    def failed(self, batch: Batch, now_s: float) -> list[WorkItem]:
        return self.dispatcher.failed(batch, now_s, 0.0)


def report(tokens: int) -> StepReport:
    return StepReport(tokens, CURVE.time_s(tokens), 0, 0.0, 0.0)


def test_nothing_waits_and_nothing_is_due() -> None:
    due = Desk("a").due()
    assert (due.batches, due.expired, due.late, due.wake_s) == ([], [], [], inf)


def test_what_waits_goes_to_an_idle_server_at_once() -> None:
    desk = Desk("a")
    items = [desk.put(10)[1], desk.put(20)[1]]
    batch = desk.batch()
    assert (batch.items, batch.token_count, batch.replica.name) == (items, 30, "a")
    assert (batch.reason, batch.retry, batch.packed_s) == (SendReason.IDLE, None, NOW_S)
    assert (batch.attempt, batch.isolated) == (0, False)
    assert batch.replica.batches_out == 1


def test_batch_ids_are_counted_under_the_dispatchers_name() -> None:
    desk = Desk("a", "b")
    ids: list[str] = []
    for _ in range(2):
        desk.put(10)
        ids.append(desk.batch().batch_id)
    assert ids == ["m-1", "m-2"]


def test_each_reason_is_told() -> None:
    desk = Desk("a")
    desk.put(60)
    desk.put(60)
    assert desk.batch().reason is SendReason.FULL
    later_s = desk.dispatcher.replicas["a"].due_s(NOW_S)
    assert desk.batch(later_s).reason is SendReason.STAGED
    desk = Desk("a")
    desk.put(250)
    assert desk.batch().reason is SendReason.OVERSIZED
    desk = Desk("a")
    desk.put(10, Priority.BACKGROUND, at_s=NOW_S - 21.0)
    assert desk.batch().reason is SendReason.AGED


def test_a_dispatcher_that_drains_sends_all_it_can_and_says_so() -> None:
    desk = Desk("a", "b", policy=DispatchPolicy())
    for _ in range(5):
        desk.put(60)
    assert [batch.reason for batch in desk.due(draining=True).batches] == [SendReason.DRAIN] * 2


def test_every_idle_server_gets_a_batch_and_the_time_to_ask_again_is_told() -> None:
    desk = Desk("a", "b")
    for _ in range(5):
        desk.put(60)
    due = desk.due()
    assert sorted(batch.replica.name for batch in due.batches) == ["a", "b"]
    assert due.wake_s == min(one.due_s(NOW_S) for one in desk.dispatcher.replicas.values())
    assert len(desk.dispatcher.queue) == 3


def test_no_batch_has_more_entries_than_a_server_takes() -> None:
    desk = Desk("a")
    for _ in range(5):
        desk.put(1)
    [batch] = desk.due(max_items=3).batches
    assert len(batch.items) == 3


def test_a_deadline_wakes_it_and_ends_what_waits() -> None:
    desk = Desk()
    query = desk.put(10, deadline_s=NOW_S + 1.0)[0]
    assert desk.nothing().wake_s == NOW_S + 1.0
    assert desk.nothing(NOW_S + 1.0).expired == [query]


def test_what_cannot_be_in_time_is_told_apart_and_only_where_there_is_evidence() -> None:
    for warm in (True, False):
        desk = Desk("a", warm=warm)
        hurried = desk.put(10, deadline_s=0.02 + 0.009)[0]
        patient = desk.put(10)[1]
        due = desk.due(0.02)
        assert due.late == ([hurried] if warm else [])
        assert (patient in due.batches[0].items, len(due.batches[0].items)) == (True, 1 if warm else 2)


def test_a_lone_servers_batch_is_given_longer_as_there_is_nowhere_else_to_send_it() -> None:
    for names, timeout_s in ((("a",), 60.0), (("a", "b"), 0.05 * 2.24)):
        desk = Desk(*names, warm=True)
        desk.put(100)
        assert desk.batch().timeout_s == pytest.approx(timeout_s)
    desk = Desk("a", policy=replace(ALONE, lone_timeout_s=0.01), warm=True)
    desk.put(100)
    assert desk.batch().timeout_s == pytest.approx(0.112)


def test_a_failed_batch_goes_whole_to_another_server_and_says_so() -> None:
    desk = Desk("a", "b")
    items = [desk.put(10)[1], desk.put(10)[1]]
    first = desk.batch()
    assert desk.failed(first, NOW_S + 0.01) == []
    assert first.replica.batches_out == 0
    again = desk.batch(NOW_S + 0.02)
    assert again.replica is not first.replica
    assert (again.items, again.reason, again.attempt, again.isolated) == (items, SendReason.RETRY, 1, False)


def cornered(desk: Desk) -> Batch:
    """The first half of a batch of four that failed on both servers."""
    for _ in range(4):
        desk.put(10)
    for number in range(2):
        assert desk.failed(desk.batch(NOW_S + number), NOW_S + number + 0.01) == []
    return desk.batch(NOW_S + 2)


def test_failing_again_it_is_bisected_and_each_part_runs_alone_on_one_server() -> None:
    desk = Desk("a", "b")
    half = cornered(desk)
    assert (len(half.items), half.reason, half.attempt, half.isolated) == (2, SendReason.SUSPECT, 2, True)
    assert half.replica.exclusive
    desk.put(10)
    others = desk.due(NOW_S + 2).batches
    assert [batch.replica is half.replica for batch in others] == [False]


def test_a_part_that_comes_back_well_clears_its_entries_and_the_other_is_looked_into() -> None:
    desk = Desk("a", "b")
    half = cornered(desk)
    desk.dispatcher.done(half, report(20), NOW_S + 2.01)
    other = desk.batch(NOW_S + 3)
    assert (other.replica, len(other.items)) == (half.replica, 1)
    assert desk.failed(other, NOW_S + 3.01) == other.items
    last = desk.batch(NOW_S + 4)
    desk.dispatcher.done(last, report(10), NOW_S + 4.01)
    assert desk.nothing(NOW_S + 5).wake_s == inf
    assert desk.dispatcher.retries.is_quarantined(other.items[0].token_ids)


def test_a_server_a_suspect_waits_for_takes_nothing_else() -> None:
    desk = Desk("a", "b")
    for _ in range(4):
        desk.put(10)
    desk.failed(desk.batch(NOW_S), NOW_S + 0.01)
    failed = desk.batch(NOW_S + 1)
    desk.failed(failed, NOW_S + 1.01)
    desk.put(60)
    desk.put(60)
    sent = desk.due(NOW_S + 2).batches
    assert {batch.reason for batch in sent if batch.replica is failed.replica} == {SendReason.SUSPECT}


def test_a_suspect_whose_server_stays_away_is_moved_when_patience_is_over() -> None:
    desk = Desk("a", "b")
    for _ in range(4):
        desk.put(10)
    desk.failed(desk.batch(NOW_S), NOW_S + 0.01)
    failed = desk.batch(NOW_S + 1)
    desk.failed(failed, NOW_S + 1.01)
    del desk.dispatcher.replicas[failed.replica.name]
    assert desk.nothing(NOW_S + 2).wake_s == NOW_S + 32.0
    assert desk.nothing(NOW_S + 31.9).wake_s == NOW_S + 32.0
    assert desk.batch(NOW_S + 32.0).reason is SendReason.SUSPECT


def test_a_failed_batch_wakes_it_when_its_pause_is_over_and_a_server_is_free() -> None:
    desk = Desk("a", "b")
    desk.put(10)
    batch = desk.batch()
    desk.dispatcher.failed(batch, NOW_S, 0.5)
    assert desk.nothing().wake_s == pytest.approx(NOW_S + 0.01)
    assert desk.batch(NOW_S + 0.011).reason is SendReason.RETRY
    assert desk.nothing(NOW_S + 0.011).wake_s == inf


def test_failed_batches_go_before_what_waits() -> None:
    desk = Desk("a", "b")
    first = desk.put(100)[1]
    desk.failed(desk.batch(), NOW_S)
    desk.put(100)
    batches = desk.due(NOW_S + 0.1).batches
    assert batches[0].items == [first]
    assert [batch.reason for batch in batches] == [SendReason.RETRY, SendReason.FULL]


@pytest.mark.parametrize(("jitter", "held_s", "again_s"), [(0.0, 0.01, 0.0), (0.5, 0.02, 0.01), (0.9, 0.028, 0.018)])
def test_a_batch_that_was_refused_goes_again_at_no_charge_once_the_server_had_a_pause(
    jitter: float, held_s: float, again_s: float
) -> None:
    desk = Desk("a")
    desk.put(10)
    batch = desk.batch()
    desk.dispatcher.refused(batch, NOW_S, jitter)
    assert batch.replica.batches_out == 0
    assert desk.dispatcher.replicas["a"].due_s(NOW_S) == pytest.approx(NOW_S + held_s)
    assert desk.dispatcher.retries.next_due_s(NOW_S - 1.0) == pytest.approx(NOW_S + again_s)
    assert desk.nothing(NOW_S + held_s - 0.001).wake_s == pytest.approx(NOW_S + held_s)
    again = desk.batch(NOW_S + held_s)
    assert (again.attempt, again.items) == (0, batch.items)


def test_a_refused_retry_is_no_first_attempt() -> None:
    desk = Desk("a", "b")
    desk.put(10)
    desk.failed(desk.batch(), NOW_S)
    retry = desk.batch(NOW_S + 1)
    desk.dispatcher.refused(retry, NOW_S + 1, 0.5)
    again = desk.batch(NOW_S + 2)
    assert (again.attempt, again.retry) == (1, retry.retry)


def test_a_batch_that_came_back_well_teaches_its_replica() -> None:
    desk = Desk("a")
    desk.put(10)
    batch = desk.batch()
    desk.dispatcher.done(batch, report(10), NOW_S + 0.01)
    assert batch.replica.has_evidence(NOW_S + 0.01)
    assert batch.replica.batches_out == 0


def test_deadlines_pass_for_what_waits_to_be_sent_again() -> None:
    desk = Desk("a", "b")
    query, item = desk.put(10, deadline_s=NOW_S + 0.5)
    desk.dispatcher.failed(desk.batch(), NOW_S, 0.9)
    assert list(desk.dispatcher.waiting()) == [item]
    assert desk.nothing(NOW_S + 0.5).expired == [query]


def test_what_waits_for_a_first_or_for_another_try_is_all_there_is() -> None:
    desk = Desk("a", "b")
    first = desk.put(100)[1]
    desk.failed(desk.batch(), NOW_S)
    second = desk.put(10)[1]
    assert set(desk.dispatcher.waiting()) == {first, second}


def test_a_retry_is_cut_to_the_budget_of_its_new_server() -> None:
    desk = Desk("a")
    for _ in range(10):
        desk.put(10)
    batch = desk.batch()
    desk.dispatcher.replicas["b"] = replica("b", token_budget=40)
    desk.failed(batch, NOW_S)
    del desk.dispatcher.replicas["a"]
    assert [each.token_count for each in desk.due(NOW_S + 1).batches] == [40]


def test_equal_inputs_are_shared_or_not_as_the_policy_says() -> None:
    for coalesce, computed in ((True, 1), (False, 3)):
        desk = Desk("a", policy=replace(ALONE, queue=QueuePolicy(coalesce=coalesce)))
        for _ in range(3):
            desk.put(10, ids=b"same")
        assert len(desk.batch().items) == computed


def test_what_is_late_for_each_of_several_batches_is_told() -> None:
    desk = Desk("a", "b", warm=True)
    for _ in range(2):
        for _ in range(10):
            desk.put(10)
    late = [desk.put(10, deadline_s=NOW_S + 0.001)[0]]
    due = desk.due()
    assert len(due.batches) == 2
    assert due.late == late


def test_a_replica_that_comes_free_is_spare_again_where_there_are_many() -> None:
    desk = Desk(*(str(number) for number in range(ENOUGH + 1)))
    while desk.dispatcher.replicas.widen():
        pass
    for _ in range(ENOUGH + 1):
        desk.put(100)
    for batch in desk.due().batches:
        desk.dispatcher.done(batch, report(100), NOW_S + 0.014)
    assert len(desk.dispatcher.replicas.in_use) == ENOUGH


def test_which_replicas_are_in_use_follows_from_the_dispatchers_name() -> None:
    names = [str(number) for number in range(3 * ENOUGH)]

    def used(name: str) -> frozenset[str]:
        dispatcher = Dispatcher(name, ALONE)
        for each in names:
            dispatcher.replicas[each] = replica(each)
        return frozenset(dispatcher.replicas.in_use)

    assert used("one") != used("another")


def test_a_shared_replica_is_sent_half_of_its_budget_where_more_waits() -> None:
    desk = Desk("a", warm=True)
    one = desk.dispatcher.replicas["a"]
    for number in range(10):
        one.sent(str(number), 10, NOW_S)
        one.ended(str(number), NOW_S, report(20))
    for _ in range(6):
        desk.put(10)
    assert desk.batch().token_count == 50


def test_a_batch_that_is_not_full_is_paced_while_a_replica_runs_but_not_past_a_deadline_nor_at_the_end() -> None:
    def ready() -> Desk:
        desk = Desk("a", "b", policy=replace(ALONE, paced=True), warm=True)
        for number in range(40):  # so much comes that no replica stays free
            desk.dispatcher._pace.sent(5, NOW_S - 0.04 + 0.001 * number)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        desk.dispatcher.replicas["a"].sent("running", 100, NOW_S - 0.001)
        return desk

    paced = ready()
    paced.put(10)
    assert NOW_S < paced.nothing().wake_s < NOW_S + 0.013
    urgent = ready()
    urgent.put(10, deadline_s=NOW_S + 0.0101)
    assert urgent.batch().token_count == 10
    ending = ready()
    ending.put(10)
    assert len(ending.due(draining=True).batches) == 1


def backlogged(count: int = 50, capacity: int = 300, **query: Any) -> Desk:
    """One replica of 100 tokens that gains from batches of up to 300, and `count` items of 10 tokens."""
    desk = Desk()
    desk.dispatcher.replicas["a"] = Replica("a", CURVE, 100, POLICY, capacity=capacity)
    for _ in range(count):
        desk.put(10, Priority.DEFAULT, **query)
    return desk


def test_a_backlog_goes_in_larger_batches_whose_steps_may_hold_as_much() -> None:
    batch = backlogged().batch()
    assert (batch.token_count, batch.token_budget, batch.reason) == (300, 300, SendReason.FULL)
    few = backlogged(8).batch()
    assert (few.token_count, few.token_budget) == (80, 100)


def test_a_backlog_whose_deadlines_are_near_goes_in_batches_of_the_usual_size() -> None:
    assert backlogged(deadline_s=NOW_S + CURVE.time_s(300) + 1e-6).batch().token_count == 300
    assert backlogged(deadline_s=NOW_S + CURVE.time_s(200) + 1e-6).batch().token_count == 200
    assert backlogged(deadline_s=NOW_S + CURVE.time_s(50)).batch().token_count == 100


def test_beside_what_is_urgent_a_backlog_goes_in_batches_of_the_usual_size() -> None:
    desk = backlogged()
    desk.put(10, Priority.INTERACTIVE)
    assert desk.batch().token_count == 100
