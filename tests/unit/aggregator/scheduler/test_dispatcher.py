"""What is due at a moment, for which reason, and what becomes of a batch that comes back."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from aggregator.scheduler.budget import BudgetController
from aggregator.scheduler.curve import Curve
from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy, Due
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import Replica, StepReport
from aggregator.scheduler.replica_choice import SendReason
from aggregator.scheduler.retries import ONE_TOKEN, RetryPolicy
from aggregator.scheduler.work_item import Priority, WorkItem
from tests.support.queries import Filler
from tests.support.replicas import CURVE, POLICY, HeardController, replica

NOW_S = 5.0
ALONE = DispatchPolicy(queue=QueuePolicy(max_wait_s=(20.0, 20.0, 20.0)), paced=False)


class Pool:
    """A dispatcher over replicas of 100 tokens, of which the same number take 14 ms."""

    def __init__(
        self, *names: str, policy: DispatchPolicy = ALONE, warm: bool = False, token_budget: int = 100
    ) -> None:
        self.dispatcher = Dispatcher("m", policy)
        for name in names:
            self.dispatcher.replicas[name] = replica(name, warm=warm, token_budget=token_budget)
        self.put = Filler(self.dispatcher.queue)

    def due(self, now_s: float = NOW_S, *, max_items: int = 1000, **how: bool) -> Due:
        return self.dispatcher.due(now_s, max_items=max_items, **how)

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


def test_what_waits_goes_to_an_idle_server_at_once() -> None:
    pool = Pool("a")
    items = [pool.put(10)[1], pool.put(20)[1]]
    batch = pool.batch()
    assert (batch.items, batch.token_count, batch.replica.name) == (items, 30, "a")
    assert (batch.reason, batch.retry, batch.packed_s) == (SendReason.IDLE, None, NOW_S)
    assert (batch.attempt, batch.isolated) == (0, False)
    assert batch.replica.batches_out == 1


def test_batch_ids_are_counted_under_the_dispatchers_name() -> None:
    pool = Pool("a", "b")
    ids: list[str] = []
    for _ in range(2):
        pool.put(10)
        ids.append(pool.batch().batch_id)
    assert ids == ["m-1", "m-2"]


def test_each_reason_is_told() -> None:
    pool = Pool("a")
    pool.put(60)
    pool.put(60)
    assert pool.batch().reason is SendReason.FULL
    later_s = pool.dispatcher.replicas["a"].due_s(NOW_S)
    assert pool.batch(later_s).reason is SendReason.STAGED
    pool = Pool("a")
    pool.put(250)
    assert pool.batch().reason is SendReason.OVERSIZED
    pool = Pool("a", "b")
    pool.put(10, Priority.BACKGROUND, at_s=NOW_S - 21.0)
    for _ in range(2):
        pool.put(100)
    assert [batch.reason for batch in pool.due().batches] == [SendReason.FULL, SendReason.AGED]


def test_a_dispatcher_that_drains_sends_all_it_can_and_says_so() -> None:
    pool = Pool("a", "b", policy=DispatchPolicy())
    for _ in range(5):
        pool.put(60)
    assert [batch.reason for batch in pool.due(draining=True).batches] == [SendReason.DRAIN] * 2


def test_every_idle_server_gets_a_batch_and_the_time_to_ask_again_is_told() -> None:
    pool = Pool("a", "b")
    for _ in range(5):
        pool.put(60)
    due = pool.due()
    assert sorted(batch.replica.name for batch in due.batches) == ["a", "b"]
    assert due.wake_s == min(one.due_s(NOW_S) for one in pool.dispatcher.replicas.values())
    assert len(pool.dispatcher.queue) == 3


def test_no_batch_has_more_entries_than_a_server_takes() -> None:
    pool = Pool("a")
    for _ in range(5):
        pool.put(1)
    [batch] = pool.due(max_items=3).batches
    assert len(batch.items) == 3


def test_a_deadline_wakes_it_and_ends_what_waits() -> None:
    pool = Pool()
    query = pool.put(10, deadline_s=NOW_S + 1.0)[0]
    assert pool.nothing().wake_s == NOW_S + 1.0
    assert pool.nothing(NOW_S + 1.0).expired == [query]


def test_what_cannot_be_in_time_is_told_apart_where_there_is_evidence() -> None:
    for warm in (True, False):
        pool = Pool("a", warm=warm)
        hurried = pool.put(10, deadline_s=0.02 + 0.009)[0]
        patient = pool.put(10)[1]
        due = pool.due(0.02)
        assert due.late == ([hurried] if warm else [])
        assert (patient in due.batches[0].items, len(due.batches[0].items)) == (True, 1 if warm else 2)


def test_a_lone_servers_batch_has_longer_as_it_has_nowhere_else_to_go() -> None:
    for names, timeout_s in ((("a",), 60.0), (("a", "b"), 0.05 * 2.24)):
        pool = Pool(*names, warm=True)
        pool.put(100)
        assert pool.batch().timeout_s == pytest.approx(timeout_s)
    pool = Pool("a", policy=replace(ALONE, lone_timeout_s=0.01), warm=True)
    pool.put(100)
    assert pool.batch().timeout_s == pytest.approx(0.112)


def test_a_failed_batch_goes_whole_to_another_server_and_says_so() -> None:
    pool = Pool("a", "b")
    items = [pool.put(10)[1], pool.put(10)[1]]
    first = pool.batch()
    assert pool.failed(first, NOW_S + 0.01) == []
    assert first.replica.batches_out == 0
    again = pool.batch(NOW_S + 0.02)
    assert again.replica is not first.replica
    assert (again.items, again.reason, again.attempt, again.isolated) == (items, SendReason.RETRY, 1, False)


def cornered(pool: Pool) -> Batch:
    """The first half of a batch of four that failed on both servers."""
    for _ in range(4):
        pool.put(10)
    for number in range(2):
        assert pool.failed(pool.batch(NOW_S + number), NOW_S + number + 0.01) == []
    return pool.batch(NOW_S + 2)


def test_failing_again_it_is_bisected_and_each_part_has_a_server_alone() -> None:
    pool = Pool("a", "b")
    half = cornered(pool)
    assert (len(half.items), half.reason, half.attempt, half.isolated) == (2, SendReason.SUSPECT, 2, True)
    assert half.replica.exclusive
    pool.put(10)
    others = pool.due(NOW_S + 2).batches
    assert [batch.replica is half.replica for batch in others] == [False]


def test_a_part_that_succeeds_clears_its_entries_the_other_is_bisected_on() -> None:
    pool = Pool("a", "b")
    half = cornered(pool)
    pool.dispatcher.done(half, report(20), NOW_S + 2.01)
    other = pool.batch(NOW_S + 3)
    assert (other.replica, len(other.items)) == (half.replica, 2)
    assert pool.failed(other, NOW_S + 3.01) == []
    one = pool.batch(NOW_S + 4)
    assert one.items == other.items[:1]


def test_an_item_failed_alone_goes_behind_controls_teaching_only_success() -> None:
    pool = Pool("a", "b")
    poison = pool.put(10)[1]
    poison_sends = controls = 0
    condemned: list[WorkItem] = []
    for turn in range(200):
        due = pool.due(NOW_S + turn)
        for batch in due.batches:
            controls += batch.control
            if batch.control:
                assert ([item.token_ids for item in batch.items], batch.isolated) == ([ONE_TOKEN], True)
                pool.dispatcher.done(batch, None, NOW_S + turn + 0.01)
            else:
                poison_sends += 1
                condemned += pool.failed(batch, NOW_S + turn + 0.01)
    policy = RetryPolicy()
    assert condemned == [poison]
    assert (poison_sends, controls) == (2 + 1 + policy.proofs, policy.proofs * policy.controls)
    assert pool.dispatcher.retries.is_quarantined(poison.token_ids, NOW_S + 200)
    assert pool.nothing(NOW_S + 201).wake_s == inf


def test_a_server_a_suspect_waits_for_takes_nothing_else() -> None:
    pool = Pool("a", "b")
    for _ in range(4):
        pool.put(10)
    pool.failed(pool.batch(NOW_S), NOW_S + 0.01)
    failed = pool.batch(NOW_S + 1)
    pool.failed(failed, NOW_S + 1.01)
    pool.put(60)
    pool.put(60)
    sent = pool.due(NOW_S + 2).batches
    assert {batch.reason for batch in sent if batch.replica is failed.replica} == {SendReason.SUSPECT}


def test_failed_batches_go_before_what_waits() -> None:
    pool = Pool("a", "b")
    first = pool.put(100)[1]
    pool.failed(pool.batch(), NOW_S)
    pool.put(100)
    batches = pool.due(NOW_S + 0.1).batches
    assert batches[0].items == [first]
    assert [batch.reason for batch in batches] == [SendReason.RETRY, SendReason.FULL]


@pytest.mark.parametrize(("jitter", "held_s", "again_s"), [(0.0, 0.01, 0.0), (0.5, 0.02, 0.01), (0.9, 0.028, 0.018)])
def test_a_refused_batch_goes_again_at_no_charge_after_the_servers_pause(
    jitter: float, held_s: float, again_s: float
) -> None:
    pool = Pool("a")
    pool.put(10)
    batch = pool.batch()
    pool.dispatcher.refused(batch, NOW_S, jitter)
    assert batch.replica.batches_out == 0
    assert pool.dispatcher.replicas["a"].due_s(NOW_S) == pytest.approx(NOW_S + held_s)
    assert pool.dispatcher.retries.next_due_s(NOW_S - 1.0) == pytest.approx(NOW_S + again_s)
    assert pool.nothing(NOW_S + held_s - 0.001).wake_s == pytest.approx(NOW_S + held_s)
    again = pool.batch(NOW_S + held_s)
    assert (again.attempt, again.items) == (0, batch.items)


def test_a_refused_retry_is_no_first_attempt() -> None:
    pool = Pool("a", "b")
    pool.put(10)
    pool.failed(pool.batch(), NOW_S)
    retry = pool.batch(NOW_S + 1)
    pool.dispatcher.refused(retry, NOW_S + 1, 0.5)
    assert pool.batch(NOW_S + 2).retry is retry.retry


def suspected() -> tuple[Pool, str]:
    """A lone input that failed on both servers, and the second of these."""
    pool = Pool("a", "b")
    pool.put(10)
    pool.failed(pool.batch(), NOW_S)
    second = pool.batch(NOW_S + 1)
    pool.failed(second, NOW_S + 1)
    return pool, second.replica.name


def test_a_server_that_returns_while_its_suspect_is_out_stays_reserved() -> None:
    pool, name = suspected()
    suspect = pool.batch(NOW_S + 2)
    back = pool.dispatcher.replicas[name] = replica(name)
    pool.nothing(NOW_S + 2)
    assert back.exclusive
    pool.dispatcher.done(suspect, report(10), NOW_S + 2.01)
    pool.nothing(NOW_S + 3)
    assert not back.exclusive


def test_a_suspect_goes_elsewhere_once_its_server_was_away_thirty_seconds() -> None:
    pool, name = suspected()
    del pool.dispatcher.replicas[name]
    assert pool.nothing(NOW_S + 2).wake_s == NOW_S + 32
    moved = pool.batch(NOW_S + 32)
    assert (moved.replica.name != name, moved.isolated) == (True, True)


def test_deadlines_pass_for_what_waits_to_be_sent_again() -> None:
    pool = Pool("a", "b")
    query, item = pool.put(10, deadline_s=NOW_S + 0.5)
    pool.dispatcher.failed(pool.batch(), NOW_S, 0.9)
    assert list(pool.dispatcher.waiting()) == [item]
    assert pool.nothing(NOW_S + 0.5).expired == [query]


def test_equal_inputs_are_shared_or_not_as_the_policy_says() -> None:
    for coalesce, computed in ((True, 1), (False, 3)):
        pool = Pool("a", policy=replace(ALONE, queue=QueuePolicy(coalesce=coalesce)))
        for _ in range(3):
            pool.put(10, ids=b"same")
        assert len(pool.batch().items) == computed


def test_a_shared_replica_is_sent_half_of_its_budget_where_more_waits() -> None:
    pool = Pool("a", warm=True)
    one = pool.dispatcher.replicas["a"]
    for number in range(10):
        one.sent(str(number), 10, NOW_S)
        one.ended(str(number), NOW_S, report(20))
    for _ in range(6):
        pool.put(10)
    assert pool.batch().token_count == 50


def test_what_each_batch_leaves_too_late_is_told() -> None:
    pool = Pool("a", warm=True)
    pool.dispatcher.replicas["b"] = replica("b", slower=1.4, warm=True)
    for _ in range(10):
        pool.put(10)
        pool.put(10, Priority.BACKGROUND)
    late = [
        pool.put(10, deadline_s=NOW_S + 0.010)[0],
        pool.put(10, Priority.BACKGROUND, deadline_s=NOW_S + 0.017)[0],
    ]
    due = pool.due()
    assert (due.late, [batch.token_count for batch in due.batches]) == (late, [100, 50])


def test_a_batch_not_full_is_paced_while_a_replica_runs_until_a_deadline() -> None:
    def ready() -> Pool:
        pool = Pool("a", "b", policy=replace(ALONE, paced=True), warm=True)
        for number in range(40):  # so much comes that no replica stays free
            pool.dispatcher._pace.sent(5, NOW_S - 0.04 + 0.001 * number)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        pool.dispatcher.replicas["a"].sent("running", 100, NOW_S - 0.001)
        return pool

    paced = ready()
    paced.put(10)
    assert NOW_S < paced.nothing().wake_s < NOW_S + 0.013
    urgent = ready()
    urgent.put(10, deadline_s=NOW_S + 0.0101)
    assert urgent.batch().token_count == 10
    ending = ready()
    ending.put(10)
    assert len(ending.due(draining=True).batches) == 1


def backlogged(count: int = 50, capacity: int = 300, controller: BudgetController | None = None, **query: Any) -> Pool:
    """One replica of 100 tokens that gains from batches of up to 300, and `count` items of 10 tokens."""
    pool = Pool()
    pool.dispatcher.replicas["a"] = Replica("a", CURVE, 100, POLICY, controller, capacity=capacity)
    for _ in range(count):
        pool.put(10, Priority.DEFAULT, **query)
    return pool


def test_a_backlog_goes_in_larger_batches_whose_steps_may_hold_as_much() -> None:
    batch = backlogged().batch()
    assert (batch.token_count, batch.token_budget, batch.reason) == (300, 300, SendReason.FULL)
    few = backlogged(8).batch()
    assert (few.token_count, few.token_budget) == (80, 100)
    steered = backlogged(controller=(controller := HeardController(300)))
    steered.dispatcher.done(steered.batch(), StepReport(300, 0.04, 0, 0.0, 0.0), NOW_S + 0.04)
    assert controller.heard == [(300, 0.04, 300)]


def test_a_backlog_whose_deadlines_are_near_goes_in_usual_batches() -> None:
    assert backlogged(deadline_s=NOW_S + CURVE.time_s(300) + 1e-6).batch().token_count == 300
    assert backlogged(deadline_s=NOW_S + CURVE.time_s(200) + 1e-6).batch().token_count == 200
    assert backlogged(deadline_s=NOW_S + CURVE.time_s(50)).batch().token_count == 100


def test_beside_what_is_urgent_a_backlog_goes_in_usual_batches() -> None:
    pool = backlogged()
    pool.put(10, Priority.INTERACTIVE)
    assert pool.batch().token_count == 100


def after_a_call(curve: Curve) -> Pool:
    """A backlog of background inputs, just after a call was answered."""
    pool = Pool("a", warm=True)
    pool.dispatcher.replicas["a"] = Replica("a", curve, 100, POLICY)
    pool.put(10, Priority.INTERACTIVE)
    pool.dispatcher.done(pool.batch(), report(10), NOW_S)
    for _ in range(30):
        pool.put(10, Priority.BACKGROUND)
    return pool


def test_behind_calls_a_backlog_goes_in_halves_where_those_are_shorter() -> None:
    assert after_a_call(CURVE).batch().token_count == 50
    assert after_a_call(replace(CURVE, floor_s=0.013)).batch().token_count == 100


class HangingServers:
    """A dispatcher over servers that hang on batches of more than some tokens, each batch until its time-out."""

    def __init__(self, pool: Pool, above: int) -> None:
        self.pool = pool
        self.above = above
        self.now_s = NOW_S
        self.answered: list[int] = []
        self.hung: list[int] = []

    def run(self, turns: int, *, step_s: float = 1.0) -> None:
        for _ in range(turns):
            self.now_s += step_s
            for batch in self.pool.due(self.now_s).batches:
                if batch.token_count > self.above:
                    self.hung.append(batch.token_count)
                    self.pool.dispatcher.failed(batch, self.now_s, 0.0, timed_out=True)
                else:
                    self.answered.append(batch.token_count)
                    self.pool.dispatcher.done(batch, report(batch.token_count), self.now_s)


def test_after_a_time_out_batches_are_half_as_large_and_grow_again_slowly() -> None:
    servers = HangingServers(Pool("a"), above=30)
    for _ in range(60):
        servers.pool.put(10)
    servers.run(40)
    assert servers.hung == [100, 50]
    assert sum(servers.answered) == 600
    assert servers.answered[0] == 20
    servers.above = 1000
    servers.answered.clear()
    for _ in range(6):
        servers.now_s += 60.0
        for _ in range(20):
            servers.pool.put(10)
        servers.run(20, step_s=0.05)
    assert sum(servers.answered) == 1200
    assert servers.answered[0] < max(servers.answered) == 100


def test_a_size_that_timed_out_outlives_a_server_that_leaves_and_returns() -> None:
    pool = Pool("a")
    for _ in range(20):
        pool.put(10)
    batch = pool.batch()
    pool.dispatcher.replicas.pop("a")
    pool.dispatcher.failed(batch, NOW_S + 1.0, 0.0, timed_out=True)
    pool.dispatcher.replicas["a"] = replica("a")
    again = pool.batch(NOW_S + 2.0)
    assert (again.token_count, again.token_budget) == (50, 50)


def test_a_batch_that_timed_out_behind_another_halves_nothing_again() -> None:
    pool = Pool("a", "b")
    pool.put(100)
    hung = pool.batch()
    pool.dispatcher.failed(hung, NOW_S + 1.0, 0.0, timed_out=True)
    behind = replace(hung, batch_id="behind", token_count=4)
    pool.dispatcher.time_outs.note(behind, NOW_S + 1.1)
    assert pool.dispatcher.time_outs.most_tokens(hung.replica, NOW_S + 1.1) == 50


def test_sizes_of_servers_that_left_long_ago_are_forgotten() -> None:
    pool = Pool("a")
    pool.put(100)
    hung = pool.batch()
    pool.dispatcher.time_outs.note(hung, NOW_S)
    for number in range(1024):
        pool.dispatcher.time_outs.note(replace(hung, replica=replica(f"pod-{number}")), NOW_S)
    assert pool.dispatcher.time_outs.most_tokens(hung.replica, NOW_S) > 100
    assert pool.dispatcher.time_outs.most_tokens(replica("pod-0"), NOW_S) == 50


def test_queries_are_stalled_while_every_batch_times_out_until_an_answer() -> None:
    servers = HangingServers(Pool("a"), above=0)
    dispatcher = servers.pool.dispatcher
    servers.pool.put(10)
    assert dispatcher.stalled_s(NOW_S) == 0.0
    servers.run(20)
    assert dispatcher.stalled_s(servers.now_s) == pytest.approx(servers.now_s - NOW_S - 1.0)
    servers.above = 100
    servers.run(80)
    assert servers.answered
    assert dispatcher.stalled_s(servers.now_s) == 0.0


def test_nothing_is_stalled_where_nothing_waits_any_more() -> None:
    pool = Pool("a")
    pool.put(10, deadline_s=NOW_S + 2.0)
    pool.dispatcher.failed(pool.batch(), NOW_S + 1.0, 0.0, timed_out=True)
    assert pool.dispatcher.stalled_s(NOW_S + 1.5) == pytest.approx(0.5)
    pool.due(NOW_S + 3.0)
    assert pool.dispatcher.stalled_s(NOW_S + 60.0) == 0.0


def test_less_urgent_inputs_make_interactive_steps_twice_as_long_at_most() -> None:
    pool = Pool("a", token_budget=1000)
    pool.put(10, Priority.INTERACTIVE)
    for _ in range(100):
        pool.put(10, Priority.BACKGROUND)
    batch = pool.batch()
    allowed_s = 2 * CURVE.time_s(10)
    assert CURVE.time_s(batch.token_count) <= allowed_s < CURVE.time_s(batch.token_count + 10)


def test_a_question_is_sent_while_background_runs_and_is_staged() -> None:
    pool = Pool("a")
    pool.put(100, Priority.BACKGROUND)
    pool.put(100, Priority.BACKGROUND)
    assert pool.batch().priority is Priority.BACKGROUND
    staged = pool.batch(NOW_S + 0.012)
    pool.put(10, Priority.INTERACTIVE)
    question = pool.batch(NOW_S + 0.012)
    assert (question.priority, question.replica) == (Priority.INTERACTIVE, staged.replica)


def test_steps_stay_short_where_another_aggregator_asks_questions() -> None:
    pool = Pool("a", "b", policy=replace(ALONE, queue=QueuePolicy()))
    for name in "ab":
        pool.dispatcher.replicas[name] = Replica(name, CURVE, 100, POLICY, capacity=1000)
    asked = pool.dispatcher.replicas["a"]
    asked.sent("before", 10, NOW_S - 1.0)
    asked.ended("before", NOW_S - 0.9, replace(report(10), recent_priorities=frozenset((Priority.INTERACTIVE,))))
    for _ in range(40):
        pool.put(50, Priority.BACKGROUND)
    sizes = {batch.replica.name: batch.token_count for batch in pool.due().batches}
    assert sizes == {"a": 50, "b": 1000}
