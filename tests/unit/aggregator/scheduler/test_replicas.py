"""Replicas: when the next batch is due, what is predicted for it, and who gets it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.scheduler.budget import BudgetController
from aggregator.scheduler.rates import LightLead
from aggregator.scheduler.replica import Replica, StepReport
from aggregator.scheduler.replica_choice import choose_replica
from aggregator.scheduler.speed import UNMEASURED
from aggregator.scheduler.work_item import Priority
from tests.support.replicas import CURVE, POLICY, HeardController, replica


def report(
    tokens: int, duration_s: float | None = None, *, queued: int = 0, idle_s: float = 0.0, staged_s: float = 0.0
) -> StepReport:
    return StepReport(tokens, CURVE.time_s(tokens) if duration_s is None else duration_s, queued, idle_s, staged_s)


def test_a_running_replica_is_due_a_lead_before_its_predicted_end() -> None:
    one = replica()
    one.sent("1", 100, 5.0)
    assert one.due_s(5.0) == pytest.approx(5.0 + 0.014 - one.lead_s)


def test_a_replica_with_one_running_and_one_staged_takes_no_more() -> None:
    one = replica()
    one.sent("1", 100, 5.0)
    one.sent("2", 60, 5.010)
    assert (one.due_s(5.010), one.batches_out, one.tokens_out) == (inf, 2, 160)
    one.ended("1", 5.014, report(100))
    assert one.due_s(5.014) == pytest.approx(5.014 + 0.010 - one.lead_s)


class Pool:
    """Replicas under any order of sends and replies."""

    def __init__(self, count: int) -> None:
        self.replicas = [replica(str(number), slower=1.0 + number) for number in range(count)]
        self.out: dict[str, Replica] = {}
        self.sent = 0

    def step(self, now_s: float, queued_tokens: int) -> float:
        turn = choose_replica(self.replicas, now_s, queued_tokens)
        if turn.replica is None:
            return turn.wake_s
        assert turn.replica.due_s(now_s) <= now_s
        self.sent += 1
        assert turn.replica.sent(str(self.sent), min(queued_tokens, 100), now_s) >= POLICY.min_timeout_s
        self.out[str(self.sent)] = turn.replica
        return now_s

    def reply(self, number: int, now_s: float, ok: bool) -> None:
        batch_id = sorted(self.out)[number % len(self.out)]
        one = self.out.pop(batch_id)
        one.ended(batch_id, now_s, report(100, queued=one.tokens_out) if ok else None)


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(["send", "reply", "fail", "hold"]), st.integers(0, 5), st.floats(0.0, 0.05)),
        max_size=60,
    ),
)
def test_never_more_than_two_are_out_and_somebody_is_always_waited_for(
    count: int, moves: list[tuple[str, int, float]]
) -> None:
    pool = Pool(count)
    now_s = 1.0
    for move, number, passing_s in moves:
        now_s += passing_s
        if move == "send":
            wake_s = pool.step(now_s, 1 + 50 * number)
            assert wake_s >= now_s
            assert pool.out or wake_s < inf  # else nothing would ever happen
        elif move == "hold":
            pool.replicas[number % count].hold_until(now_s + 0.01)
        elif pool.out:
            pool.reply(number, now_s, ok=move == "reply")
        for one in pool.replicas:
            assert one.batches_out == sum(where is one for where in pool.out.values()) <= 2


def test_a_batch_that_is_not_out_cannot_come_back() -> None:
    with pytest.raises(AssertionError, match="This is a bug"):
        replica().ended("1", 5.0, None)


def test_a_suspect_runs_alone() -> None:
    one = replica()
    one.exclusive = True
    assert one.due_s(5.0) == 5.0  # free for it
    one.sent("1", 10, 5.0)
    assert one.due_s(99.0) == inf
    one.ended("1", 5.01, None)
    assert not one.exclusive


def test_a_replica_that_is_held_waits_and_finishes_later() -> None:
    one = replica()
    one.hold_until(6.0)
    one.hold_until(5.5)
    assert one.due_s(5.0) == 6.0
    assert one.finish_s(10, 5.0) == pytest.approx(6.010)
    one.sent("1", 10, 6.0)
    one.hold_until(7.0)
    assert one.due_s(6.0) == 7.0


def test_what_others_queued_delays_a_replica_until_it_is_done() -> None:
    one = replica()
    one.sent("1", 10, 5.0)
    one.ended("1", 5.01, report(10, queued=200))
    assert one.foreign_tokens == 200
    assert one.free_s(5.01) == pytest.approx(5.01 + 0.024)
    assert one.free_s(5.03) == pytest.approx(5.034)
    assert one.free_s(60.0) == 60.0  # what was queued then is long done


def test_what_this_aggregator_queued_is_not_somebody_elses() -> None:
    one = replica()
    one.sent("1", 10, 5.0)
    one.sent("2", 80, 5.005)
    one.ended("1", 5.01, report(10, queued=80))
    assert one.foreign_tokens == 0
    assert one.free_s(5.01) == pytest.approx(5.01 + 0.012)


def test_what_is_overdue_is_expected_to_last_as_long_again() -> None:
    one = replica()
    one.sent("1", 10, 5.0)
    assert one.free_s(5.0) == pytest.approx(5.010)
    assert one.free_s(5.030) == pytest.approx(5.050)


def test_a_failed_batch_teaches_nothing_but_frees_its_replica() -> None:
    one = replica()
    one.sent("1", 10, 5.0)
    one.sent("2", 10, 5.009)
    one.ended("1", 6.0, None)
    assert one.free_s(6.0) == pytest.approx(6.010)
    assert not one.has_evidence(6.0)


def test_a_time_out_is_four_predictions_and_room_for_a_step_of_another() -> None:
    assert replica().sent("1", 10, 5.0) == POLICY.first_timeout_s  # before its first reply no prediction is trusted
    assert replica(token_budget=1000, warm=True).sent("1", 1000, 5.0) == pytest.approx(4 * 2 * 0.104)
    assert replica(token_budget=10, warm=True).sent("1", 10, 5.0) == pytest.approx(4 * 2 * 0.010)
    assert replica(slower=0.1, warm=True).sent("1", 10, 5.0) == POLICY.min_timeout_s


def test_the_first_reply_of_an_unmeasured_server_replaces_the_guess() -> None:
    one = Replica("a", None, 500, POLICY)
    assert (one.curve, one.step_time_s(500)) == (None, UNMEASURED.time_s(500))
    one.sent("1", 500, 5.0)
    one.ended("1", 8.0, report(500, 0.3))
    assert one.step_time_s(500) == pytest.approx(0.3)
    assert one.curve is not None
    assert one.pod_step() == (500, one.scale * one.curve.time_s(500))
    one.sent("2", 500, 8.0)
    one.ended("2", 11.0, report(500, 0.33))
    assert 0.3 < one.step_time_s(500) < 0.33


@pytest.mark.parametrize("duration_s", [0.0, inf])
def test_a_step_without_a_duration_teaches_nothing(duration_s: float) -> None:
    one = Replica("a", None, 500, POLICY)
    one.sent("1", 500, 5.0)
    one.ended("1", 8.0, report(500, duration_s))
    assert one.step_time_s(500) == UNMEASURED.time_s(500)


def test_predictions_learn_from_the_whole_step_which_others_may_share() -> None:
    one = Replica("a", CURVE, 600, POLICY)
    for number in range(60):
        one.sent(str(number), 50, number)
        one.ended(str(number), number + 0.064, report(600))  # 550 tokens of somebody else's with it
    assert one.step_time_s(600) == pytest.approx(CURVE.time_s(600), rel=0.3)


@pytest.mark.parametrize(("step_budget", "packed_for"), [(0, 100), (300, 300)])
def test_a_replica_is_steered_by_the_whole_step_and_its_batchs_own_budget(step_budget: int, packed_for: int) -> None:
    """Neither by its own batch, which was a part of the step, nor by the budget of today."""
    controller = HeardController(100)
    one = Replica("a", CURVE, 100, POLICY, controller)
    one.sent("1", 50, 5.0, step_budget)
    one.token_budget = 77
    one.ended("1", 5.064, report(600, 0.064))
    assert controller.heard == [(600, 0.064, packed_for)]


def test_evidence_is_a_reply_not_older_than_five_seconds() -> None:
    one = Replica("a", CURVE, 100, replace(POLICY, evidence_factor=1.0))  # its step takes just what was predicted
    assert not one.has_evidence(0.0)
    one.sent("1", 10, 5.0)
    one.ended("1", 5.01, report(10))
    assert one.has_evidence(10.01)
    assert not one.has_evidence(10.02)


def test_a_reply_that_belies_the_prediction_is_no_evidence() -> None:
    one = replica(slower=10.0)
    one.sent("1", 10, 5.0)
    one.ended("1", 5.01, report(10, 0.01))
    assert not one.has_evidence(5.01)


def test_the_lead_grows_by_engine_idleness_and_shrinks_by_a_batchs_wait() -> None:
    one = replica()
    first_s = one.lead_s

    def staged(now_s: float, told: StepReport) -> float:
        one.sent("1", 100, now_s)
        one.sent("2", 100, now_s)
        one.ended("1", now_s, report(100, idle_s=9.0))  # it was not staged: the engine had nothing to do
        one.ended("2", now_s, told)
        return one.lead_s

    grown_s = staged(5.0, report(100, idle_s=0.003))
    assert grown_s == pytest.approx(first_s + 0.003)
    assert staged(6.0, report(100, idle_s=0.0001, staged_s=0.001)) == grown_s  # both are good enough
    shorter_s = staged(7.0, report(100, staged_s=0.012))
    assert shorter_s == pytest.approx(grown_s - POLICY.lead_decay * 0.010)
    assert staged(8.0, report(100, idle_s=1.0)) == pytest.approx(0.014)  # never more than a step
    assert staged(9.0, report(100, staged_s=10.0)) == POLICY.min_lead_s


def test_a_replica_promises_whole_steps_of_its_budget_until_a_time() -> None:
    one = replica()
    one.sent("1", 100, 5.0)  # ends at 5.014
    assert [one.finishes_by(by_s, 500, 5.0) for by_s in (5.014, 5.0279, 5.0281, 5.0421, 6.0)] == [0, 0, 100, 200, 500]
    assert one.finishes_by(5.0241, 60, 5.0) == 60


def test_a_replica_idle_or_overdue_or_kept_for_a_suspect_promises_nothing() -> None:
    one = replica()
    assert one.finishes_by(9.0, 100, 5.0) == 0
    one.sent("1", 100, 5.0)
    assert one.finishes_by(9.0, 100, 5.1) == 0
    one.exclusive = True
    assert one.finishes_by(9.0, 100, 5.0) == 0


def shared_by(reports: list[StepReport], **policy: float) -> Replica:
    """A replica of 100 tokens after its own batches of 40 were answered so."""
    one = Replica("a", CURVE, 101, replace(POLICY, **policy))
    for number, each in enumerate(reports):
        one.sent(str(number), 40, 5.0 + number)
        one.ended(str(number), 5.01 + number, each)
    return one


@pytest.mark.parametrize(
    ("told", "shared"),
    [
        (report(40), False),  # its own batch, and nothing waits
        (report(41), True),  # a token of somebody else's
        (report(40, queued=1), True),  # somebody else's waits
    ],
)
def test_a_replica_is_shared_where_replies_tell_of_others_batches(told: StepReport, shared: bool) -> None:
    assert shared_by([told] * 10).batch_tokens(60) == (50 if shared else 101)


@pytest.mark.parametrize(("queued", "cut"), [(50, 101), (51, 50), (100, 50), (101, 101), (900, 101)])
def test_where_others_send_too_a_batch_is_cut_so_that_two_fit_one_step(queued: int, cut: int) -> None:
    assert shared_by([report(41)] * 10).batch_tokens(queued) == cut


@pytest.mark.parametrize(("told", "lead_s"), [(report(40), 0.001), (report(41), POLICY.first_lead_s)])
def test_where_others_send_too_few_tokens_are_sent_as_early_as_many(told: StepReport, lead_s: float) -> None:
    one = shared_by([told] * 10)
    one.light_lead.value_s = 0.001
    one.sent("running", 40, 20.0)
    assert one.due_s(20.0, share_tokens=0) == pytest.approx(one.end_s - lead_s)


def test_a_replica_counts_as_shared_from_a_fifth_of_replies_on() -> None:
    half = shared_by([report(41)], sharing_gain=0.2).batch_tokens(60)
    assert (half, type(half)) == (50, int)
    assert shared_by([report(41), report(40), report(40)], sharing_gain=0.2).batch_tokens(60) == 101


def test_a_replica_begins_with_its_controllers_budget() -> None:
    budget_controller = HeardController(77)
    assert Replica("a", CURVE, 101, POLICY, budget_controller).token_budget == budget_controller.token_budget != 101


def test_what_is_staged_ends_after_what_others_have_queued() -> None:
    one = replica(warm=True)
    one.sent("1", 100, 5.0)
    one.sent("2", 100, 5.010)
    one.ended("1", 5.014, report(100, queued=160))  # 100 of them its own
    assert one.end_s == pytest.approx(5.014 + CURVE.time_s(60) + CURVE.time_s(100))


def staged(sent_s: float, told: StepReport) -> Replica:
    """A replica whose second batch was sent at `sent_s`, while the first one ran until 5.014 s, and was answered so."""
    one = replica()
    one.sent("1", 100, 5.0)
    one.sent("2", 100, sent_s)
    one.ended("1", 5.014, report(100))
    one.ended("2", 5.028, told)
    return one


TARGET_S = POLICY.idle_target * 0.014


@pytest.mark.parametrize(
    ("sent_s", "idle_s", "longer_s"),
    [(5.009, TARGET_S, 0.0), (5.009, 2 * TARGET_S, 2 * TARGET_S), (5.009, 0.003, 0.003), (5.0135, 0.003, 0.0)],
)
def test_the_lead_grows_by_idle_time_above_target_unless_sent_later(
    sent_s: float, idle_s: float, longer_s: float
) -> None:
    assert staged(sent_s, report(100, idle_s=idle_s)).lead_s == POLICY.first_lead_s + longer_s


def test_the_lead_is_shorter_while_less_than_a_batch_waits() -> None:
    one = replica()
    one.light_lead.value_s = 0.001
    one.sent("1", 100, 5.0)
    leads_s = [5.014 - one.due_s(5.0, share_tokens=tokens) for tokens in (0, 50, 100, 900)]
    assert leads_s == pytest.approx([0.001, 0.0025, 0.004, 0.004])


@pytest.mark.parametrize(("sent_s", "right_s"), [(5.009, 0.007), (5.010, 0.006), (5.013, 0.003), (5.016, 0.0)])
def test_any_staged_batch_says_which_light_lead_is_right(sent_s: float, right_s: float) -> None:
    expected = LightLead(POLICY.first_lead_s, POLICY.min_lead_s)
    expected.observe(right_s)
    one = staged(sent_s, report(100, idle_s=0.003, staged_s=0.001))
    assert one.light_lead.value_s == pytest.approx(expected.value_s)


def test_a_batch_for_an_idle_replica_says_nothing_of_leads() -> None:
    one = replica()
    one.sent("1", 100, 5.0)
    one.ended("1", 5.014, report(100, idle_s=9.0))
    assert one.lead_s == one.light_lead.value_s == POLICY.first_lead_s


def roomy(capacity: int = 1000, budget_controller: BudgetController | None = None) -> Replica:
    """A replica of 100 tokens whose server gains from batches of up to `capacity`."""
    return Replica("a", CURVE, 100, POLICY, budget_controller, capacity=capacity)


@pytest.mark.parametrize(("backlog", "cut"), [(0, 100), (100, 100), (101, 101), (700, 700), (1000, 1000), (5000, 1000)])
def test_of_a_backlog_as_much_is_cut_as_waits_up_to_what_the_server_gains(backlog: int, cut: int) -> None:
    assert roomy().batch_tokens(9000, backlog, inf) == cut


@pytest.mark.parametrize("slow_steps", [0, 50])
def test_a_backlogs_batch_takes_what_time_it_may_and_at_least_the_budget(slow_steps: int) -> None:
    one = roomy()
    for number in range(slow_steps):
        one.sent(str(number), 100, float(number))
        one.ended(str(number), number + 0.1, report(100, 2 * CURVE.time_s(100)))
    within_s = one.step_time_s(400)
    assert one.batch_tokens(9000, 9000, within_s + 1e-9) == 400
    assert one.batch_tokens(9000, 9000, one.step_time_s(50)) == 100
    assert one.batch_tokens(9000, 9000, -1.0) == 100


def test_where_a_steps_time_is_the_same_for_any_tokens_all_are_in_time() -> None:
    flat = replace(CURVE, per_token_s=0.0)
    assert Replica("a", flat, 100, POLICY, capacity=1000).batch_tokens(9000, 9000, 1e-9) == 1000


def test_no_measured_gain_or_a_stricter_controller_bounds_backlogs() -> None:
    assert roomy(capacity=0).batch_tokens(9000, 9000, inf) == 100
    budget_controller = HeardController(300)
    assert roomy(budget_controller=budget_controller).batch_tokens(9000, 9000, inf) == 300


def test_a_time_out_allows_for_the_largest_step_of_somebody_else() -> None:
    plain, large = roomy(capacity=0), roomy()
    for one in (plain, large):
        one.sent("0", 100, 4.0)
        one.ended("0", 4.01, report(100))
    more_s = large.step_time_s(1000) - large.step_time_s(100)
    assert large.sent("1", 100, 5.0) - plain.sent("1", 100, 5.0) == pytest.approx(POLICY.timeout_factor * more_s)


def test_a_step_may_take_what_is_left_until_then_less_the_reply_delay() -> None:
    one = replica()
    assert one.answered_within_s(5.5, 5.0) == pytest.approx(0.5)
    one.sent("1", 100, 5.0)
    assert one.answered_within_s(5.5, 5.0) == pytest.approx(0.486)
    one.reply_delay.observe(0.007, 0.014)
    assert one.answered_within_s(5.5, 5.0) == pytest.approx(0.486 / (1.0 + one.reply_delay.value))
    assert one.answer_s(100, 5.0) == pytest.approx(5.014 + 0.014 * (1.0 + one.reply_delay.value))


def test_an_interactive_batch_goes_before_a_staged_one() -> None:
    one = replica()
    one.sent("running", 100, 5.0, priority=Priority.BACKGROUND)
    one.sent("staged", 100, 5.010, priority=Priority.BACKGROUND)
    assert one.due_s(5.010, Priority.BACKGROUND) == inf
    assert one.due_s(5.010, Priority.INTERACTIVE) == pytest.approx(5.014 - one.lead_s)
    assert one.free_s(5.010, Priority.INTERACTIVE) == pytest.approx(5.014)
    assert one.free_s(5.010, Priority.BACKGROUND) == pytest.approx(5.028)
    one.sent("question", 10, 5.011, priority=Priority.INTERACTIVE)
    assert one.due_s(5.011, Priority.INTERACTIVE) == inf
    assert one.end_s == pytest.approx(5.038)
    one.ended("running", 5.014, report(100))
    assert one.due_s(5.014, Priority.INTERACTIVE) == pytest.approx(5.024 - one.lead_s)
    assert one.due_s(5.014, Priority.BACKGROUND) == inf


def test_a_batch_that_was_overtaken_says_nothing_of_the_lead() -> None:
    one = replica()
    one.sent("running", 100, 5.0, priority=Priority.BACKGROUND)
    one.sent("staged", 100, 5.009, priority=Priority.BACKGROUND)
    one.sent("question", 10, 5.009, priority=Priority.INTERACTIVE)
    one.ended("running", 5.014, report(100))
    one.ended("question", 5.024, report(10))
    before_s = one.lead_s, one.light_lead.value_s
    one.ended("staged", 5.038, report(100, staged_s=0.015))
    assert (one.lead_s, one.light_lead.value_s) == before_s
    assert one.reply_delay.value == pytest.approx(0.0, abs=1e-6)


def test_behind_others_more_urgent_batches_a_batch_gets_two_seconds_more() -> None:
    one = replica(warm=True)
    usual_s = one.sent("1", 100, 5.0, priority=Priority.BACKGROUND)
    one.ended("1", 5.1, replace(report(100), recent_priorities=frozenset((Priority.INTERACTIVE,))))
    assert one.reply_delay.value < 0.01  # its delay is theirs, and predicts nothing for an interactive batch
    assert one.sent("2", 100, 6.0, priority=Priority.BACKGROUND) == pytest.approx(usual_s + 2.0)
    one.ended("2", 6.1, None)
    assert one.sent("3", 100, 7.0, priority=Priority.INTERACTIVE) == pytest.approx(usual_s)


def test_questions_go_at_once_where_others_background_batches_run() -> None:
    """The server merges them into its next step, whose beginning is not known here; up to one budget."""
    one = replica()
    one.sent("before", 10, 4.0)
    classes = frozenset((Priority.INTERACTIVE, Priority.BACKGROUND))
    one.ended("before", 4.1, replace(report(10), recent_priorities=classes))
    one.sent("1", 50, 5.0)
    assert one.due_s(5.0, Priority.INTERACTIVE) == pytest.approx(5.0 + 0.010 / 4)
    assert one.due_s(5.0, Priority.BACKGROUND) == pytest.approx(5.010 - one.lead_s)
    one.sent("2", 50, 5.003)
    assert one.due_s(5.003, Priority.INTERACTIVE) == inf
