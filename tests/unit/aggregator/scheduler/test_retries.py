"""Retries: what failed is tried again, and the one query that breaks the engine is cornered."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf, log2
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.scheduler.retries import ONE_TOKEN, Retries, RetryBatch, RetryPolicy
from aggregator.scheduler.work_item import WorkItem
from tests.support.queries import packed, query, work_item

POLICY = RetryPolicy(backoff_s=0.02, patience_s=30.0, quarantine_size=3)
PROVEN_SENDS = POLICY.proofs * (1 + POLICY.controls)
"""What condemns an item that failed isolated: each proof and the controls before it."""


def items(count: int, tokens: int = 10, *, deadline_s: float = inf) -> list[WorkItem]:
    return [work_item(packed(number), tokens, query(deadline_s=deadline_s, index=number)) for number in range(count)]


def give_up(*given_up: WorkItem) -> None:
    for item in given_up:
        item.waiters[0].item = None


@dataclass(slots=True)
class Send:
    """One send of a retry batch, where, and what came of it."""

    replica: str
    items: list[WorkItem]
    failed: bool
    suspect: bool
    control: bool


@dataclass(slots=True)
class Pool:
    """Two or more idle replicas that fail a batch for which `breaks` holds; keeps book of every send."""

    breaks: Callable[[list[WorkItem]], bool]
    replicas: tuple[str, ...] = ("a", "b", "c")
    retries: Retries = field(default_factory=lambda: Retries(POLICY))
    now_s: float = 100.0
    sends: list[Send] = field(default_factory=list[Send])
    well: list[WorkItem] = field(default_factory=list[WorkItem])
    poison: list[WorkItem] = field(default_factory=list[WorkItem])
    sends_to: str = ""

    def send(self, replica: str, batch: list[WorkItem], retry: RetryBatch | None = None) -> None:
        self.sends_to = replica
        failed = self.breaks(batch)
        control = retry is not None and retry.control
        self.sends.append(Send(replica, batch, failed, retry is not None and retry.suspect, control))
        if failed:
            self.poison += self.retries.failed(batch, retry, replica, self.now_s, 0.5)
        else:
            self.well += [] if control else batch
            self.poison += self.retries.answered(batch, (), retry, replica=replica, now_s=self.now_s, jitter=0.5)

    def succeed(self, retry: RetryBatch, replica: str = "b", *failed: WorkItem) -> None:
        """A retry batch was answered but for the items that failed."""
        self.poison += self.retries.answered(retry.items, failed, retry, replica=replica, now_s=self.now_s, jitter=0.5)

    def finish(self, most_turns: float = inf) -> None:
        """Send everything again until nothing is left, one replica after the other."""
        while len(self.retries) and most_turns > 0:
            most_turns -= 1
            self.now_s += 0.2
            self.retries.replicas_changed(self.replicas, self.now_s)
            for replica in self.replicas:
                retry = self.ask(replica)
                if retry is not None:
                    self.send(replica, retry.items, retry)

    def ask(self, replica: str, *, token_budget: int = 10**6, idle: bool = True) -> RetryBatch | None:
        return self.retries.next_for(
            replica, token_budget=token_budget, idle=idle, others=len(self.replicas) > 1, now_s=self.now_s
        )

    def take(self, replica: str, **how: Any) -> RetryBatch:
        """A retry batch that is due there."""
        retry = self.ask(replica, **how)
        assert retry is not None
        return retry


def holds(poison: WorkItem, sent: list[WorkItem]) -> bool:
    return poison in sent


def nothing_breaks(_: list[WorkItem]) -> bool:
    return False


def all_breaks(_: list[WorkItem]) -> bool:
    return True


def all_but_the_control_breaks(sent: list[WorkItem]) -> bool:
    return [item.token_ids for item in sent] != [ONE_TOKEN]


@pytest.mark.parametrize("size", [*range(2, 40), 64, 100, 255, 256, 257])
def test_one_poison_is_cornered_within_the_bounds_wherever_it_is(size: int) -> None:
    batch = items(size)
    for poison in batch if size < 40 else random.Random(size).sample(batch, 12):
        pool = Pool(partial(holds, poison))
        pool.send("a", batch)
        pool.finish()
        assert pool.poison == [poison]
        assert set(pool.well) == set(batch) - {poison}
        levels = ceil(log2(size))
        assert sum(send.failed for send in pool.sends) <= levels + 2 + POLICY.proofs
        assert len(pool.sends) <= 2 * levels + 2 + PROVEN_SENDS
        bisections = [send for send in pool.sends if send.suspect and send.failed and len(send.items) > 1]
        assert {send.replica for send in bisections} <= {"b"}
        assert [item for item in batch if pool.retries.is_quarantined(item.token_ids, pool.now_s)] == [poison]


def test_a_lone_query_is_condemned_once_it_fails_on_two_well_replicas() -> None:
    batch = items(1)
    pool = Pool(partial(holds, batch[0]))
    pool.send("a", batch)
    pool.finish()
    assert pool.poison == batch
    isolated = [send.replica for send in pool.sends[2:] if not send.control]
    assert len(isolated) == 1 + POLICY.proofs
    assert len(set(isolated[1:])) >= 2
    for proof in range(POLICY.proofs):
        sends = pool.sends[3 + proof * (1 + POLICY.controls) :][: 1 + POLICY.controls]
        assert [send.control for send in sends] == [True] * POLICY.controls + [False]
        assert len({send.replica for send in sends}) == 1


def test_on_a_server_whose_control_fails_nobody_is_blamed() -> None:
    batch = items(6)
    pool = Pool(all_breaks)
    pool.send("a", batch)
    pool.finish(most_turns=300)
    assert pool.poison == []
    assert {send.replica for send in pool.sends if send.control} == {"a", "b", "c"}
    pool.breaks = nothing_breaks
    pool.finish()
    assert sorted(map(id, pool.well)) == sorted(map(id, batch))


def test_waiting_suspects_are_retried_whole_if_a_control_blames_a_server() -> None:
    pool, behind = Pool(all_breaks), items(6)
    pool.send("a", items(1))
    pool.finish(most_turns=3)
    pool.retries.failed(behind, RetryBatch(behind, 1, "a", 0.0), "b", pool.now_s, 0.5)
    pool.finish(most_turns=3)
    pool.breaks = nothing_breaks
    pool.sends.clear()
    pool.finish()
    assert [(send.items, send.suspect) for send in pool.sends if len(send.items) > 1] == [(behind, False)]
    assert pool.poison == []


def accused() -> tuple[Pool, WorkItem]:
    """A single item that failed on a, b and isolated on b; its next control is due on a."""
    pool, batch = suspected(1)
    pool.retries.replicas_changed(pool.replicas, pool.now_s)
    pool.breaks = all_breaks
    pool.send("b", batch, pool.take("b"))
    pool.now_s += 1.0
    return pool, batch[0]


def test_a_control_that_is_refused_goes_again_after_a_pause_at_no_charge() -> None:
    pool, item = accused()
    control = pool.take("a")
    assert control.control
    pool.retries.refused(control.items, control, pool.now_s, 0.5)
    assert pool.ask("a") is None
    pool.breaks = nothing_breaks
    pool.finish()
    assert (pool.well, sum(send.control for send in pool.sends)) == ([item], POLICY.controls)


@pytest.mark.parametrize("end", ["succeeded", "failed", "refused"])
def test_a_control_whose_item_was_given_up_leaves_nothing_behind(end: str) -> None:
    pool, item = accused()
    control = pool.take("a")
    give_up(item)
    match end:
        case "succeeded":
            pool.succeed(control, "a")
        case "failed":
            pool.retries.failed(control.items, control, "a", pool.now_s, 0.5)
        case _:
            pool.retries.refused(control.items, control, pool.now_s, 0.5)
    pool.now_s += 1.0
    assert not pool.retries.reserves("a", pool.now_s)
    assert len(pool.retries) == 0


def test_one_server_that_is_well_suffices_where_the_others_are_not() -> None:
    batch, bad = items(1), "bc"
    pool = Pool(nothing_breaks)
    pool.breaks = lambda sent: batch[0] in sent or pool.sends_to in bad
    pool.send("a", batch)
    pool.finish()
    assert pool.poison == batch


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("unwell", ["ab", "b"])
def test_steps_that_fail_at_random_condemn_no_innocent_and_a_poison_still(share: float, unwell: str) -> None:
    chance = random.Random(f"{share}{unwell}")
    pool = Pool(nothing_breaks, replicas=("a", "b"))
    poison = items(1, tokens=99)[0]
    pool.breaks = lambda sent: poison in sent or (pool.sends_to in unwell and chance.random() < share)
    everything: list[WorkItem] = []
    for number in range(40):
        batch = items(8) + [poison] * (number == 20)
        everything += batch
        pool.send("ab"[number % 2], batch)
        pool.finish(most_turns=200)
    assert pool.poison in ([], [poison])
    pool.breaks = lambda sent: poison in sent
    pool.finish()
    assert pool.poison == [poison]
    assert sorted(map(id, pool.well)) == sorted(id(item) for item in everything if item is not poison)


@pytest.mark.parametrize(("replicas", "then"), [(("a", "b", "c"), "b"), (("a",), "a")])
def test_a_batch_that_failed_otherwise_is_tried_whole_once_on_any_other(replicas: tuple[str, ...], then: str) -> None:
    batch = items(5)
    pool = Pool(nothing_breaks, replicas)
    pool.retries.failed(batch, None, "a", pool.now_s, 0.5)
    pool.finish()
    assert [(send.replica, send.items) for send in pool.sends] == [(then, batch)]


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.sets(st.integers(0, 11))), min_size=1, max_size=5),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_whatever_fails_only_poison_is_condemned_and_one_suspect_is_out(
    batches: list[tuple[int, set[int]]], replicas: int, order: random.Random
) -> None:
    bad: set[WorkItem] = set()
    pool = Pool(lambda sent: bool(bad & set(sent)), replicas=tuple("abcd"[:replicas]))
    everything: list[WorkItem] = []
    for size, poisoned in batches:
        batch = items(size)
        everything += batch
        bad.update(batch[number] for number in poisoned if number < size)
        pool.send(order.choice(pool.replicas), batch)
    out: list[tuple[str, RetryBatch]] = []
    while len(pool.retries) or out:
        pool.now_s += 0.05
        if out and order.random() < 0.5:
            replica, retry = out.pop(order.randrange(len(out)))
            pool.send(replica, retry.items, retry)
        replica = order.choice(pool.replicas)
        again = pool.ask(replica, idle=all(where != replica for where, _ in out))
        if again is not None:
            out.append((replica, again))
        suspects = [where for where, retry in out if retry.suspect]
        assert len(suspects) <= 1
        assert all(pool.retries.reserves(where, pool.now_s) for where in suspects)
    assert set(pool.poison) == bad
    assert len(pool.poison) == len(bad)
    assert sorted(map(id, pool.well)) == sorted(id(item) for item in everything if item not in bad)


def suspected(size: int = 4, *, deadline_s: float = inf) -> tuple[Pool, list[WorkItem]]:
    """A batch that failed on a and then on b."""
    pool, batch = Pool(nothing_breaks), items(size, deadline_s=deadline_s)
    pool.retries.failed(batch, None, "a", pool.now_s, 0.5)
    pool.now_s += 1.0
    retry = pool.take("b")
    pool.retries.failed(batch, retry, "b", pool.now_s, 0.5)
    pool.now_s += 1.0
    return pool, batch


def test_a_suspect_waits_for_an_idle_replica_and_has_it_kept_free() -> None:
    pool, batch = suspected()
    assert pool.ask("b", idle=False) is None
    assert pool.ask("a") is None
    assert pool.retries.reserves("b", pool.now_s)
    assert not pool.retries.reserves("a", pool.now_s)
    retry = pool.take("b")
    assert retry.items == batch[:2]
    assert pool.retries.reserves("b", pool.now_s)
    assert pool.ask("b") is None  # one at a time


def test_a_pause_grows_with_failures_and_keeps_no_replica_for_a_suspect() -> None:
    pool, batch = Pool(nothing_breaks), items(4)
    pool.retries.failed(batch, None, "a", pool.now_s, 0.5)
    assert pool.retries.next_due_s(pool.now_s) == pytest.approx(pool.now_s + 0.01)
    pool.now_s += 1.0
    pool.retries.failed(batch, pool.take("b"), "b", pool.now_s, 0.5)
    assert not pool.retries.reserves("b", pool.now_s)
    assert pool.retries.next_due_s(pool.now_s) == pytest.approx(pool.now_s + 0.02)
    assert pool.retries.reserves("b", pool.now_s + 0.021)


def test_no_half_is_blamed_for_what_the_other_one_did_not_do() -> None:
    pool, batch = suspected(8)
    sent: list[list[WorkItem]] = []
    for _ in range(2):
        retry = pool.take("b")
        sent.append(retry.items)
        pool.succeed(retry)
    assert sent == [batch[:4], batch[4:]]
    assert len(pool.retries) == 0


def test_who_was_given_up_may_have_been_the_poison() -> None:
    pool, batch = suspected(8)
    give_up(batch[0])
    sent: list[list[WorkItem]] = []
    while (retry := pool.ask("b")) is not None:
        sent.append(retry.items)
        pool.succeed(retry)
    assert sent == [batch[1:4], batch[4:]]


def test_parts_nobody_awaits_are_dropped_and_the_next_batch_is_suspected() -> None:
    pool, batch = suspected(2)
    other = items(1)
    pool.retries.failed(other, RetryBatch(other, 1, "a", 0.0), "c", pool.now_s, 0.5)
    assert len(pool.retries) == 3
    gone = items(2)
    pool.retries.failed(gone, RetryBatch(gone, 1, "a", 0.0), "c", pool.now_s, 0.5)
    pool.now_s += 1.0
    give_up(*batch, *gone)
    assert not pool.retries.reserves("b", pool.now_s)
    retry = pool.take("c")
    assert retry.items == other
    pool.succeed(retry)
    assert (pool.ask("c"), len(pool.retries)) == (None, 0)


def test_suspects_move_when_their_replica_stays_away_too_long() -> None:
    pool, _ = suspected()
    now_s = pool.now_s
    pool.retries.replicas_changed(["a", "b"], now_s)
    assert pool.retries.next_due_s(now_s) == inf
    pool.retries.replicas_changed(["a"], now_s)
    assert pool.retries.next_due_s(now_s) == now_s + 30.0
    pool.retries.replicas_changed(["b"], now_s + 10.0)  # it is back
    pool.retries.replicas_changed(["a"], now_s + 20.0)
    pool.retries.replicas_changed(["a"], now_s + 40.0)
    assert pool.ask("a") is None
    pool.retries.replicas_changed([], now_s + 50.0)  # nowhere to go
    pool.retries.replicas_changed(["c", "a"], now_s + 51.0)
    pool.now_s = now_s + 51.0
    assert pool.ask("a") is None
    assert pool.ask("c") is not None


def test_a_refused_batch_waits_its_turn_again_at_no_charge() -> None:
    pool, batch = Pool(nothing_breaks), items(2)
    pool.retries.refused(batch, None, pool.now_s, 0.5)
    assert pool.ask("a") is None
    assert pool.retries.next_due_s(pool.now_s) == pytest.approx(pool.now_s + 0.01)
    pool.now_s += 0.011
    retry = pool.take("a")
    assert (retry.items, retry.failures) == (batch, 0)
    pool.retries.failed(batch, retry, "a", pool.now_s, 0.5)
    pool.now_s += 1.0
    retry = pool.take("b")
    pool.retries.refused(batch, retry, pool.now_s, 0.5)
    pool.now_s += 1.0
    assert pool.ask("a") is None  # where it failed before
    assert pool.ask("b") is retry


def test_a_refused_suspect_stays_the_next_one() -> None:
    pool, _ = suspected()
    retry = pool.take("b")
    pool.retries.refused(retry.items, retry, pool.now_s, 0.5)
    assert pool.ask("b") is None
    pool.now_s += 1.0
    assert pool.ask("b") is retry


def test_a_group_over_a_new_replicas_budget_goes_in_parts_with_no_pause() -> None:
    pool, batch = Pool(nothing_breaks), items(5, tokens=40)
    pool.retries.failed(batch, None, "a", pool.now_s, 0.5)
    pool.now_s += 0.01
    parts = [pool.take("b", token_budget=budget) for budget in (80, 10, 1000)]
    assert [part.items for part in parts] == [batch[:2], batch[2:3], batch[3:]]
    assert [part.token_count for part in parts] == [80, 40, 80]
    assert {(part.failures, part.failed_on) for part in parts} == {(1, "a")}
    assert pool.ask("b") is None


def test_no_group_that_nobody_awaits_or_that_pauses_holds_up_the_next() -> None:
    pool, gone, pausing, ready = Pool(nothing_breaks), items(2), items(2), items(2)
    for group, jitter in ((gone, 0.0), (pausing, 0.9), (ready, 0.0)):
        pool.retries.failed(group, None, "a", pool.now_s, jitter)
    give_up(*gone)
    assert pool.take("b").items == ready
    assert pool.retries.items() == pausing


def test_deadlines_pass_while_waiting_too() -> None:
    pool, hurried = Pool(nothing_breaks), items(3, deadline_s=101.0)
    pool.retries.failed(hurried + items(1), None, "a", 100.0, 0.0)
    give_up(hurried[0])
    assert pool.retries.next_due_s(100.0) == 101.0
    assert pool.retries.expire(100.9) == []
    assert pool.retries.expire(101.0) == [item.waiters[0] for item in hurried[1:]]
    assert len(pool.retries.items()) == 4
    assert pool.retries.next_due_s(101.0) == inf
    retry = pool.take("b")
    assert len(retry.items) == 1


def test_the_same_poison_is_known_when_replayed_and_forgotten_in_order() -> None:
    pool, batch = Pool(all_but_the_control_breaks), items(5)
    assert not pool.retries.is_quarantined(batch[0].token_ids, pool.now_s)
    for item in batch:
        pool.send("a", [item])
        pool.finish()
    assert [pool.retries.is_quarantined(item.token_ids, pool.now_s) for item in batch] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert not pool.retries.is_quarantined(b"another", pool.now_s)


def test_suspects_move_at_the_very_end_of_their_replicas_patience() -> None:
    pool, _ = suspected(deadline_s=103.0)
    pool.retries.replicas_changed(["a"], pool.now_s)
    ends_s = pool.now_s + 30.0
    assert [pool.retries.next_due_s(at_s) for at_s in (pool.now_s, ends_s - 1.0, ends_s)] == [103.0, ends_s, inf]
    pool.now_s = ends_s
    pool.retries.replicas_changed(["a"], ends_s)
    assert pool.ask("a") is not None


def test_a_quarantine_ends_after_minutes() -> None:
    pool = Pool(nothing_breaks)
    pool.retries.quarantine(b"1234", 100.0)
    assert pool.retries.is_quarantined(b"1234", 100.0 + POLICY.quarantine_s - 1.0)
    assert not pool.retries.is_quarantined(b"1234", 100.0 + POLICY.quarantine_s)


def test_the_quarantine_knows_an_input_by_all_its_ids_and_nothing_else() -> None:
    pool = Pool(all_but_the_control_breaks)
    poison = work_item(b"\x01\x00\x00\x00\x02\x00\x00\x00", 2, query())
    pool.send("a", [poison])
    pool.finish()
    assert pool.poison == [poison]
    assert pool.retries.is_quarantined(bytes(poison.token_ids), pool.now_s)
    for other in (poison.token_ids[:-4], poison.token_ids + bytes(4), poison.token_ids[::-1], b""):
        assert not pool.retries.is_quarantined(other, pool.now_s)
    pool.retries.quarantine(b"1234", pool.now_s)
    assert pool.retries.is_quarantined(b"1234", pool.now_s)


def test_retries_go_in_the_order_in_which_they_failed_a_refused_one_first() -> None:
    pool = Pool(nothing_breaks)
    first, second, refused = items(1), items(1), items(1)
    pool.retries.failed(first, None, "a", pool.now_s, 0.0)
    pool.retries.failed(second, None, "a", pool.now_s, 0.0)
    pool.retries.refused(refused, None, pool.now_s, 0.0)
    sent = [retry.items for _ in range(3) if (retry := pool.ask("b")) is not None]
    assert sent == [refused, first, second]
    assert pool.ask("b") is None


def test_a_batch_that_waits_behind_a_suspect_is_tried_where_it_failed() -> None:
    pool, _ = suspected(1)
    other = items(1)
    pool.retries.failed(other, RetryBatch(other, 1, "a", 0.0), "c", pool.now_s, 0.0)
    assert pool.ask("c") is None
    lone = pool.take("b")
    pool.succeed(lone)
    assert pool.ask("b") is None
    retry = pool.take("c")
    assert (retry.items, retry.suspect, retry.failures) == (other, True, 2)


@dataclass(slots=True)
class RowPool(Pool):
    """Replicas that fail single items: those for which `lies` holds on that replica."""

    lies: Callable[[str, WorkItem], bool] = field(default=lambda _replica, _item: False)

    def send(self, replica: str, batch: list[WorkItem], retry: RetryBatch | None = None) -> None:
        self.sends_to = replica
        failed = [item for item in batch if self.lies(replica, item)]
        control = retry is not None and retry.control
        self.sends.append(Send(replica, batch, bool(failed), retry is not None and retry.suspect, control))
        self.well += [] if control else [item for item in batch if item not in failed]
        self.poison += self.retries.answered(batch, failed, retry, replica=replica, now_s=self.now_s, jitter=0.5)


def test_items_that_a_server_lies_about_succeed_elsewhere() -> None:
    batch = items(8)
    pool = RowPool(nothing_breaks, lies=lambda replica, item: replica == "a" and item in batch[2:4])
    pool.send("a", batch)
    assert pool.well == batch[:2] + batch[4:]
    pool.finish()
    assert (set(pool.well), pool.poison) == (set(batch), [])
    assert [send.items for send in pool.sends] == [batch, batch[2:4]]


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_items_that_fail_everywhere_are_condemned_by_proofs_alone(size: int) -> None:
    batch = items(size)
    wrong = batch[: max(1, size // 2)]
    pool = RowPool(nothing_breaks, lies=lambda _, item: item in wrong)
    pool.send("a", batch)
    pool.finish()
    assert (set(pool.poison), set(pool.well)) == (set(wrong), set(batch) - set(wrong))
    assert pool.retries.untrusted() == []
    alone = [send for send in pool.sends if send.items == [wrong[0]] and send.suspect]
    assert len(alone) >= POLICY.proofs
    assert len({send.replica for send in alone}) > 1


def test_a_server_that_lies_about_controls_condemns_nobody() -> None:
    pool = RowPool(nothing_breaks, replicas=("a",), lies=lambda *_: True)
    batch = items(4)
    pool.send("a", batch)
    untrusted: list[str] = []
    for _ in range(40):
        pool.finish(1)
        untrusted += pool.retries.untrusted()
    assert pool.poison == []
    assert untrusted[0] == "a"
    pool.lies = lambda *_: False
    pool.finish()
    assert set(pool.well) == set(batch)


def test_eight_failures_that_another_server_refutes_are_the_servers_own() -> None:
    pool = RowPool(nothing_breaks, lies=lambda replica, _: replica == "a")
    for count in range(POLICY.blames):
        assert pool.retries.untrusted() == []
        pool.send("a", items(2))
        if count == 0:
            pool.send("b", items(1))  # what others do well says nothing of it
        pool.finish()
    assert (pool.retries.untrusted(), pool.retries.untrusted()) == (["a"], [])


def test_a_batch_that_a_server_answers_whole_ends_the_count_of_its_blames() -> None:
    pool = RowPool(nothing_breaks, lies=lambda replica, item: replica == "a" and item.token_count == 10)
    for _ in range(2):
        for _ in range(POLICY.blames - 1):
            pool.send("a", items(2))
            pool.finish()
        pool.send("a", items(1, tokens=1))
    assert pool.retries.untrusted() == []


def test_a_server_that_is_gone_is_blamed_no_more() -> None:
    pool = RowPool(nothing_breaks, lies=lambda replica, _: replica == "a")
    for _ in range(POLICY.blames):
        pool.send("a", items(1))
        pool.finish()
    pool.retries.replicas_changed(("b", "c"), pool.now_s)
    assert pool.retries.untrusted() == []


def test_a_suspect_is_no_longer_out_once_it_came_back_whichever_way() -> None:
    pool, _ = suspected(4)
    for ends in (
        pool.succeed,
        lambda retry: pool.retries.failed(retry.items, retry, "b", 200.0, 0.0),
    ):
        retry = pool.take("b")
        pool.now_s = 300.0
        ends(retry)
        assert pool.retries.reserves("b", pool.now_s)
    assert pool.ask("b") is not None


def test_everything_that_waits_counts_retries_parts_and_those_behind() -> None:
    pool, batch = suspected(4)
    other, whole = items(2), items(3)
    pool.retries.failed(other, RetryBatch(other, 1, "a", 0.0), "c", pool.now_s, 0.0)
    pool.retries.failed(whole, None, "a", pool.now_s, 0.0)
    assert len(pool.retries) == 1 + 2 + 1
    assert sorted(map(id, pool.retries.items())) == sorted(map(id, batch + other + whole))
