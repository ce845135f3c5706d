"""Turns: which replica gets the next batch, and when a batch that is not full waits for company."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from typing_extensions import override

from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import Replica
from aggregator.scheduler.replica_choice import Pace, ReplicaChoice, SendReason, choose_replica
from tests.support.replicas import CURVE, POLICY, replica


def test_the_replica_that_finishes_first_has_its_turn_and_tells_why() -> None:
    slow, fast = replica("slow", slower=2.0), replica("fast")
    turn = choose_replica([slow, fast], 5.0, 50)
    assert (turn.replica, turn.reason, turn.wake_s, turn.finish_s) == (fast, SendReason.IDLE, inf, None)
    assert choose_replica([slow, fast], 5.0, 100).reason is SendReason.FULL
    fast.sent("1", 100, 5.0)
    assert choose_replica([fast], 5.013, 500).reason is SendReason.STAGED


def test_replicas_are_compared_by_the_same_tokens() -> None:
    large, small = replica("large", token_budget=1000), replica("small", slower=1.5, token_budget=50)
    assert choose_replica([small, large], 5.0, 1000).replica is large


def test_when_it_is_nobodys_turn_the_next_one_is_told() -> None:
    one, other = replica("one"), replica("other")
    one.sent("1", 100, 5.0)
    other.sent("2", 200, 5.0)
    turn = choose_replica([one, other], 5.0, 50)
    assert (turn.replica, turn.wake_s) == (None, one.due_s(5.0, share_tokens=25))
    assert choose_replica([], 5.0, 50).wake_s == inf


def test_an_idle_replica_is_passed_by_while_another_would_finish_sooner() -> None:
    slow, fast = replica("slow", slower=10.0), replica("fast")
    fast.sent("1", 100, 5.0)
    turn = choose_replica([slow, fast], 5.0, 50)
    assert (turn.replica, turn.wake_s) == (None, fast.due_s(5.0, share_tokens=25))
    fast.sent("2", 100, 5.012)
    turn = choose_replica([slow, fast], 5.012, 50)
    assert turn.replica is None
    assert turn.wake_s == pytest.approx(5.028)  # when both are promised to have ended
    assert choose_replica([slow, fast], turn.wake_s, 50).replica is slow


def test_a_slow_replica_takes_what_others_would_not_finish_sooner() -> None:
    slow, fast = replica("slow", slower=10.0), replica("fast")
    fast.sent("1", 100, 5.0)
    assert choose_replica([slow, fast], 5.0, 800).replica is None
    assert choose_replica([slow, fast], 5.0, 1000).replica is slow


def test_another_replica_is_wanted_if_none_has_its_turn_or_waits_are_long() -> None:
    slow, fast = replica("slow", slower=10.0), replica("fast")
    fast.sent("1", 50, 5.0)
    assert choose_replica([slow, fast], 5.0, 50).lacks_replica
    assert choose_replica([fast], 5.0, 50).lacks_replica
    slower = replica("slower", slower=1.9)
    turn = choose_replica([slower, fast], 5.005, 50)
    assert turn.replica is None
    assert not turn.lacks_replica


def test_nobody_waits_for_a_replica_that_a_suspect_has() -> None:
    slow, fast = replica("slow", slower=10.0), replica("fast")
    fast.sent("1", 10, 5.0)
    fast.exclusive = True
    assert choose_replica([slow, fast], 5.0, 50).replica is slow


def test_a_turn_that_would_miss_a_deadline_tells_the_soonest_known_finish() -> None:
    slow, fast = replica("slow", slower=10.0, warm=True), replica("fast", warm=True)
    fast.sent("1", 100, 5.0)
    fast.sent("2", 100, 5.0)
    turn = choose_replica([slow, fast], 5.0, 2000, deadline_s=5.1)
    assert turn.replica is slow
    assert turn.finish_s == pytest.approx(5.042)
    assert choose_replica([slow, fast], 5.0, 2000, deadline_s=5.15).finish_s == pytest.approx(5.14)
    stale = replica("stale")
    assert choose_replica([stale, fast], 5.0, 2000).finish_s is None


def busy_pace(*, sent_s: float = 5.0) -> Pace:
    """Ten queries a millisecond."""
    pace = Pace()
    pace.sent(10, sent_s - 0.001)
    pace.sent(10, sent_s)
    return pace


def test_the_time_until_a_replica_is_free_is_divided_between_the_free() -> None:
    pace = busy_pace()
    assert pace.next_s(3, 5.020, 1.0) == pytest.approx(5.005)
    assert pace.next_s(1, 5.020, 1.0) == pytest.approx(5.010)
    assert pace.next_s(3, 5.020, 0.2) == pytest.approx(5.001)  # where company saves little


def test_nothing_waits_before_the_first_batch_or_if_free_replicas_suffice() -> None:
    assert Pace().next_s(1, 5.0, 1.0) == -inf
    rare = Pace()
    for number in range(50):
        rare.sent(1, 0.1 * number)
    assert rare.next_s(1, 4.920, 1.0) == -inf
    assert busy_pace().next_s(3, 4.9, 1.0) == -inf  # all that is out should be back


def test_queries_are_spread_over_the_time_until_the_next_replica_is_free() -> None:
    pace = Pace()
    pace.sent(10, 4.0)
    pace.sent(10, 5.0)
    assert pace.next_s(10, 6.0, 1.0) == pytest.approx(5.0 + 1.0 / 11)
    assert pace.next_s(11, 6.0, 1.0) == -inf


def test_a_rate_is_soon_forgotten() -> None:
    pace = busy_pace()
    pace.sent(1, 6.0)
    assert pace.next_s(1, 6.020, 1.0) == -inf


def test_a_small_batch_waits_its_time_while_another_replica_runs() -> None:
    replicas = [replica("a"), replica("b"), replica("c")]
    replicas[0].sent("1", 50, 5.0)
    turn = choose_replica(replicas, 5.001, 30, busy_pace())
    assert turn.replica is None
    assert turn.wake_s == pytest.approx(5.0 + 0.010 / 3)
    assert choose_replica(replicas, turn.wake_s, 30, busy_pace()).replica is replicas[1]
    assert choose_replica(replicas, 5.001, 30).replica is replicas[1]


def test_no_batch_waits_if_full_or_perhaps_late_or_if_no_replica_is_busy() -> None:
    replicas = [replica("a"), replica("b"), replica("c")]
    assert choose_replica(replicas, 5.001, 30, busy_pace()).replica is replicas[0]
    replicas[0].sent("1", 50, 5.0)
    assert choose_replica(replicas, 5.001, 100, busy_pace()).replica is replicas[1]
    assert choose_replica(replicas, 5.001, 30, busy_pace(), deadline_s=5.012).replica is replicas[1]
    assert choose_replica(replicas, 5.001, 30, busy_pace(), deadline_s=5.020).replica is None


def test_an_answer_at_the_very_deadline_is_too_late() -> None:
    slow, fast = replica("slow", slower=10.0, warm=True), replica("fast", warm=True)
    fast.sent("1", 100, 5.0)
    fast.sent("2", 100, 5.0)
    at_s = slow.answer_s(100, 5.0)
    assert choose_replica([slow, fast], 5.0, 2000, deadline_s=at_s).finish_s == pytest.approx(5.042)
    assert choose_replica([slow, fast], 5.0, 2000, deadline_s=at_s + 1e-9).finish_s == at_s


def test_what_waits_is_paced_by_what_it_saves_of_a_step() -> None:
    """60 of 100 tokens take as long as one: all of a step is saved. Twice as many tokens in reach: less of it."""

    class Asked(Pace):
        def __init__(self) -> None:
            super().__init__()
            self.gains: list[float] = []

        @override
        def next_s(self, free_replicas: int, next_free_s: float, gain: float) -> float:
            self.gains.append(gain)
            return -inf

    pace = Asked()
    slow, busy = Replica("slow", replace(CURVE, floor_s=0.0), 100, POLICY), replica("busy")
    busy.sent("1", 100, 5.0)
    choose_replica([slow, busy], 5.0, 50, pace)
    assert pace.gains == [pytest.approx((0.004 + 1e-4) / (0.004 + 50e-4))]


def test_a_pace_knows_only_what_was_sent() -> None:
    pace = Pace()
    pace.sent(1, 0.0)
    pace.sent(1, 1.0)  # one a second
    assert pace.next_s(1, 1.9, 1.0) == -inf
    assert pace.next_s(1, 2.1, 1.0) == pytest.approx(1.55)


class Fixed(Pace):
    """Lets the next batch go at one time."""

    @override
    def next_s(self, free_replicas: int, next_free_s: float, gain: float) -> float:
        return 5.001


def test_no_batch_waits_for_its_pace_until_an_answer_at_the_very_deadline() -> None:
    idle, busy = replica("idle"), replica("busy")
    busy.sent("1", 100, 5.0)
    at_s = idle.answer_s(50, 5.001)
    assert choose_replica([idle, busy], 5.0, 50, Fixed(), at_s).replica is idle
    assert choose_replica([idle, busy], 5.0, 50, Fixed(), at_s + 1e-9).replica is None


def idle_beside_busy(idle: int, busy: int) -> ReplicaChoice:
    """What becomes of 16 tokens, a moment before a busy replica is free, by what steps take on either."""
    replicas = [
        Replica(str(times), Curve(0.0, 0.0, times * 2**-10, 1, Rule.THROUGHPUT, 1000), 100, POLICY)
        for times in (idle, busy)
    ]
    replicas[1].sent("1", 8 // busy, 0.0)
    return choose_replica(replicas, 0.0, 16)


@pytest.mark.parametrize(("idle", "busy", "waits"), [(3, 2, True), (7, 5, False)])
def test_a_replica_is_passed_by_only_for_others_half_as_quick_again(idle: int, busy: int, *, waits: bool) -> None:
    assert (idle_beside_busy(idle, busy).replica is None) == waits


@pytest.mark.parametrize(("idle", "lacks"), [(2, False), (3, True)])
def test_another_replica_is_worth_while_where_it_saves_over_two_steps(idle: int, *, lacks: bool) -> None:
    turn = idle_beside_busy(idle, 1)
    assert (turn.replica, turn.lacks_replica) == (None, lacks)
