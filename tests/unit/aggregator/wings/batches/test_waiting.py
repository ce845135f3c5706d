"""Records of chunks wait for their turn: batches take turns, and what is revoked waits no more."""

from __future__ import annotations

from aggregator.sources.kafka.offsets import CommittedOffset
from aggregator.wings.batches.objects import Pointer
from aggregator.wings.batches.waiting import Waiting
from tests.support.records import record_at


def test_batches_take_turns_and_a_chunk_that_comes_back_goes_first() -> None:
    offsets, waiting = CommittedOffset("chunks", 0, 0), Waiting()
    records = [offsets.deliver(record_at(place)) for place in range(1, 6)]
    for pointer, record in zip(
        [Pointer("t", batch, chunk) for batch, chunk in [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]],
        records,
        strict=True,
    ):
        waiting.put(pointer, record)
    first = waiting.take(lambda _: True)
    assert first is not None
    assert (first[0].batch, first[0].chunk, len(waiting)) == ("a", 0, 4)
    waiting.put_back(first)
    waiting.drop({records[3], records[1]})
    taken = [waiting.take(lambda _: True) for _ in range(3)]
    assert [(each[0].batch, each[0].chunk) for each in taken if each is not None] == [("b", 1), ("a", 0), ("a", 2)]
    assert (waiting.take(lambda _: True), len(waiting), list(waiting)) == (None, 0, [])


def test_a_batch_that_may_not_go_keeps_its_place() -> None:
    offsets, waiting = CommittedOffset("chunks", 0, 0), Waiting()
    for place, batch in enumerate("ab", 1):
        waiting.put(Pointer("t", batch, 0), offsets.deliver(record_at(place)))
    taken = waiting.take(lambda pointer: pointer.batch != "a")
    assert taken is not None
    assert (taken[0].batch, [each.batch for each in waiting]) == ("b", ["a"])


def test_tenants_take_turns_where_they_are_what_takes_turns() -> None:
    offsets, waiting = CommittedOffset("chunks", 0, 0), Waiting(lambda pointer: pointer.folder)
    for place, (folder, batch) in enumerate([("many", "a"), ("many", "b"), ("many", "c"), ("one", "d")], 1):
        waiting.put(Pointer(folder, batch), offsets.deliver(record_at(place)))
    taken = [waiting.take(lambda _: True) for _ in range(4)]
    assert [each[0].batch for each in taken if each is not None] == ["a", "d", "b", "c"]
